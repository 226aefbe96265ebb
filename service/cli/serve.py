"""`tidelog serve`: one node in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def serve(
    port: Annotated[int | None, typer.Option(help="Kafka port; 0 takes a free one. (default: 9092)")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Hot segments and metadata. (default: data/node)")] = None,
    store: Annotated[
        str | None,
        typer.Option(
            help="Where history goes: s3://bucket/prefix, file:///path, a path, or none. (default: data/store)"
        ),
    ] = None,
    s3_endpoint: Annotated[str | None, typer.Option(help="An S3 endpoint other than AWS's own.")] = None,
    s3_region: Annotated[str | None, typer.Option(help="Overrides the standard AWS setting.")] = None,
    listen: Annotated[
        str | None, typer.Option(help="Address to listen on, HOST or HOST:PORT. (default: 127.0.0.1)")
    ] = None,
    advertise: Annotated[
        str | None, typer.Option(help="HOST:PORT that clients are told. (default: what is listened on)")
    ] = None,
    grpc_port: Annotated[
        int | None, typer.Option(help="For sealing and other calls of applications. (default: a free one)")
    ] = None,
    http_port: Annotated[int | None, typer.Option(help="Health, readiness and counters. (default: a free one)")] = None,
    node_id: Annotated[int | None, typer.Option(help="This node's number in its cluster. (default: 1)")] = None,
    new_cluster: Annotated[
        bool,
        typer.Option("--new-cluster", help="Let an empty data directory begin a cluster beside those in the store."),
    ] = False,
    take_over: Annotated[
        str | None,
        typer.Option(
            metavar="CLUSTER_ID", help="Let an empty data directory become this cluster's, from the store alone."
        ),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="With --take-over: every byte in the store is checked first.")
    ] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A broker config under Kafka's own name; repeatable."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with any of these settings and a table named broker.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="DEBUG, INFO, WARNING or ERROR. (default: INFO)")] = None,
    log_format: Annotated[str | None, typer.Option(help="text, or json: an object a line. (default: text)")] = None,
) -> None:
    """Run a node until SIGTERM or Ctrl-C. Each setting: flag, then TIDELOG_* variable, then --config file, then default."""
    from service.app import run
    from service.settings import load_settings
    from storage_tiers.errors import LogError

    try:
        broker = _pairs(set_ or [])
        host, listen_port = _host_port(listen)
        flags = {
            "port": port if port is not None else listen_port,
            "data_dir": data_dir,
            "store": store,
            "s3_endpoint": s3_endpoint,
            "s3_region": s3_region,
            "listen": host,
            "advertise": advertise,
            "grpc_port": grpc_port,
            "http_port": http_port,
            "node_id": node_id,
            "new_cluster": new_cluster or None,
            "take_over": take_over,
            "verify": verify or None,
            "log_level": log_level,
            "log_format": log_format,
            "broker": broker or None,
        }
        settings = load_settings(flags, config_file=config)
        code = run(settings)
    except LogError as error:
        typer.echo(f"tidelog: {error}", err=True)
        raise typer.Exit(1) from None
    raise typer.Exit(code)


def _pairs(texts: list[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"--set {text!r}: write KEY=VALUE, for example --set log.retention.ms=86400000")
        pairs[key.strip()] = value.strip()
    return pairs


def _host_port(text: str | None) -> tuple[str | None, int | None]:
    if text is None:
        return None, None
    host, colon, port = text.rpartition(":")
    if not colon:
        return text, None
    if not port.isdigit():
        raise typer.BadParameter(f"--listen {text!r}: write HOST or HOST:PORT")
    return host, int(port)
