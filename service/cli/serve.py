"""`tidelog serve`: one node in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_Port = Annotated[int | None, typer.Option(help="Kafka port; 0 takes a free one. (default: 9092)")]
_DataDir = Annotated[Path | None, typer.Option(help="Hot segments and metadata. (default: data/node)")]
_Store = Annotated[
    str | None,
    typer.Option(help="Where history goes: s3://bucket/prefix, file:///path, a path, or none. (default: data/store)"),
]
_S3Endpoint = Annotated[str | None, typer.Option(help="An S3 endpoint other than AWS's own.")]
_S3Region = Annotated[str | None, typer.Option(help="Overrides the standard AWS setting.")]
_Listen = Annotated[str | None, typer.Option(help="Address to listen on, HOST or HOST:PORT. (default: 127.0.0.1)")]
_Advertise = Annotated[str | None, typer.Option(help="HOST:PORT that clients are told. (default: what is listened on)")]
_GrpcPort = Annotated[
    int | None, typer.Option(help="For sealing and other calls of applications. (default: a free one)")
]
_HttpPort = Annotated[int | None, typer.Option(help="Health, readiness and counters. (default: a free one)")]
_NodeId = Annotated[int | None, typer.Option(help="This node's number in its cluster. (default: 1)")]
_NewCluster = Annotated[
    bool,
    typer.Option("--new-cluster", help="Let an empty data directory begin a cluster beside those in the store."),
]
_TakeOver = Annotated[
    str | None,
    typer.Option(metavar="CLUSTER_ID", help="Let an empty data directory become this cluster's, from the store alone."),
]
_Verify = Annotated[bool, typer.Option("--verify", help="With --take-over: every byte in the store is checked first.")]
_Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A broker config under Kafka's own name; repeatable."),
]
_Config = Annotated[Path | None, typer.Option(help="TOML file with any of these settings and a table named broker.")]
_LogLevel = Annotated[str | None, typer.Option(help="DEBUG, INFO, WARNING or ERROR. (default: INFO)")]
_LogFormat = Annotated[str | None, typer.Option(help="text, or json: an object a line. (default: text)")]


def serve(
    port: _Port = None,
    data_dir: _DataDir = None,
    store: _Store = None,
    s3_endpoint: _S3Endpoint = None,
    s3_region: _S3Region = None,
    listen: _Listen = None,
    advertise: _Advertise = None,
    grpc_port: _GrpcPort = None,
    http_port: _HttpPort = None,
    node_id: _NodeId = None,
    new_cluster: _NewCluster = False,
    take_over: _TakeOver = None,
    verify: _Verify = False,
    set_: _Set = None,
    config: _Config = None,
    log_level: _LogLevel = None,
    log_format: _LogFormat = None,
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
