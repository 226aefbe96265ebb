"""`tidelog cluster up`: runs brokers for development and tests. By default they leave nothing behind."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from service.cli.serve import start

_Brokers = Annotated[
    str,
    typer.Option(
        "--brokers", metavar="N|auto", help="The number of brokers, each in its own process; `auto` means one per core."
    ),
]
_Port = Annotated[
    int, typer.Option(min=0, max=65000, help="The Kafka port. gRPC and HTTP use the next two. 0: three free ports.")
]
_DataDir = Annotated[
    Path | None,
    typer.Option(
        help="Keep the records and the store in this directory. (default: a temporary directory, deleted at the end)"
    ),
]


def up(brokers: _Brokers = "3", port: _Port = 9092, data_dir: _DataDir = None) -> None:
    """Run several brokers for development and tests until Ctrl-C, with a directory as the store."""
    from service.settings.node_settings import load_settings
    from storage_tiers.errors import LogError

    with ExitStack() as stack:
        at = data_dir or Path(stack.enter_context(TemporaryDirectory(prefix="tidelog-")))
        kafka, grpc, http = (f"127.0.0.1:{port + each if port else 0}" for each in range(3))
        flags = {
            "brokers": brokers,
            "data_dir": at / "node",
            "store": str(at / "store"),
            "listeners": f"PLAINTEXT://{kafka}",
            "grpc_listener": grpc,
            "http_listener": http,
            "log_level": "WARNING",
        }
        try:
            code = start(load_settings(flags, environ={}))
        except LogError as error:
            typer.echo(f"tidelog: {error}", err=True)
            code = 1
    raise typer.Exit(code)
