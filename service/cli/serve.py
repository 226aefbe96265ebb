"""`tidelog serve`: runs a node, with one broker in this process or several in processes of their own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from service.settings.node_settings import NodeSettings

_Listeners = Annotated[
    str | None,
    typer.Option(
        metavar="NAME://HOST:PORT,…",
        help="Kafka listeners, as in Kafka's `listeners`. A listener without a host uses all addresses of this machine; "
        "port 0 uses a free port. (default: PLAINTEXT://127.0.0.1:9092)",
    ),
]
_AdvertisedListeners = Annotated[
    str | None,
    typer.Option(
        metavar="NAME://HOST:PORT,…",
        help="The address that each listener's clients connect to, as in Kafka's `advertised.listeners`. "
        "(default: --listeners)",
    ),
]
_ProtocolMap = Annotated[
    str | None,
    typer.Option(
        metavar="NAME:PLAINTEXT,…",
        help="The protocol of each listener that is not named PLAINTEXT, as in Kafka's `listener.security.protocol.map`.",
    ),
]
_DataDir = Annotated[Path | None, typer.Option(help="The directory of hot segments and metadata. (default: data/node)")]
_Store = Annotated[
    str | None,
    typer.Option(help="The store: s3://bucket/prefix, file:///path, a path, or none. (default: data/store)"),
]
_S3Endpoint = Annotated[str | None, typer.Option(help="An S3 endpoint other than AWS's own.")]
_S3Region = Annotated[str | None, typer.Option(help="The S3 region. (default: from the standard AWS settings)")]
_GrpcListener = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="The gRPC listener. (default: 127.0.0.1:9093)"),
]
_HttpListener = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT", help="The HTTP listener for health, readiness and metrics. (default: 127.0.0.1:9094)"
    ),
]
_Roles = Annotated[
    str | None,
    typer.Option(
        metavar="broker|broker,controller",
        help="The roles that this node must have. With `broker` it refuses to start without --controller. "
        "(default: broker with --controller, else broker,controller)",
    ),
]
_Controller = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Join the cluster of the controller at this address, as a broker with the same --store.",
    ),
]
_ControllerListener = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Serve at this address as the controller of brokers in other processes."),
]
_NodeId = Annotated[int | None, typer.Option(help="This node's id in its cluster. (default: 1)")]
_Brokers = Annotated[
    str | None,
    typer.Option(
        metavar="N|auto",
        help="The number of brokers on this machine, each in its own process; `auto` means one per core. (default: 1)",
    ),
]
_Supervised = Annotated[str | None, typer.Option(hidden=True)]
_NewCluster = Annotated[
    bool,
    typer.Option(
        "--new-cluster", help="Allow an empty data directory to create a new cluster in a store that has others."
    ),
]
_TakeOver = Annotated[
    str | None,
    typer.Option(metavar="CLUSTER_ID", help="Rebuild an empty data directory from this cluster in the store."),
]
_Verify = Annotated[bool, typer.Option("--verify", help="With --take-over: verify every byte in the store first.")]
_Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A broker config, by Kafka's name; repeatable."),
]
_Config = Annotated[
    Path | None,
    typer.Option(help="A TOML file with any of these settings, and broker configs in a table named broker."),
]
_LogLevel = Annotated[str | None, typer.Option(help="DEBUG, INFO, WARNING or ERROR. (default: INFO)")]
_LogFormat = Annotated[str | None, typer.Option(help="text, or json: one object per line. (default: text)")]


def serve(
    listeners: _Listeners = None,
    advertised_listeners: _AdvertisedListeners = None,
    listener_security_protocol_map: _ProtocolMap = None,
    grpc_listener: _GrpcListener = None,
    http_listener: _HttpListener = None,
    data_dir: _DataDir = None,
    store: _Store = None,
    s3_endpoint: _S3Endpoint = None,
    s3_region: _S3Region = None,
    node_id: _NodeId = None,
    roles: _Roles = None,
    controller: _Controller = None,
    controller_listener: _ControllerListener = None,
    brokers: _Brokers = None,
    supervised: _Supervised = None,
    new_cluster: _NewCluster = False,
    take_over: _TakeOver = None,
    verify: _Verify = False,
    set_: _Set = None,
    config: _Config = None,
    log_level: _LogLevel = None,
    log_format: _LogFormat = None,
) -> None:
    """Run a node until SIGTERM or Ctrl-C. Settings come from flags, TIDELOG_* variables, the --config file, then defaults."""
    from service.settings.node_settings import load_settings
    from storage_tiers.errors import LogError

    try:
        broker = _pairs(set_ or [])
        flags = {
            "listeners": listeners,
            "advertised_listeners": advertised_listeners,
            "listener_security_protocol_map": listener_security_protocol_map,
            "grpc_listener": grpc_listener,
            "http_listener": http_listener,
            "data_dir": data_dir,
            "store": store,
            "s3_endpoint": s3_endpoint,
            "s3_region": s3_region,
            "node_id": node_id,
            "roles": roles,
            "controller": controller,
            "controller_listener": controller_listener,
            "brokers": brokers,
            "supervised": supervised,
            "new_cluster": new_cluster or None,
            "take_over": take_over,
            "verify": verify or None,
            "log_level": log_level,
            "log_format": log_format,
            "broker": broker or None,
        }
        code = start(load_settings(flags, config_file=config))
    except LogError as error:
        typer.echo(f"tidelog: {error}", err=True)
        raise typer.Exit(1) from None
    raise typer.Exit(code)


def start(settings: NodeSettings) -> int:
    """Runs one broker in this process, or several in processes of their own, until they stop. Returns the exit code. Raises
    LogError if the node cannot start."""
    from service.process.cores import usable_cores

    brokers = usable_cores() if settings.brokers == "auto" else settings.brokers
    if brokers > 1:
        from service.supervisor.run import supervise

        return supervise(settings, brokers)
    from service.process.collecting import collect_rarely

    collect_rarely()  # before the imports, which create most of the objects of a start
    from service.serve.app import run
    from service.supervisor.held import check_none_left_out

    if settings.supervised is None:
        check_none_left_out(settings, brokers)
    return run(settings)


def _pairs(texts: list[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"--set {text!r}: write KEY=VALUE, for example --set log.retention.ms=86400000")
        pairs[key.strip()] = value.strip()
    return pairs
