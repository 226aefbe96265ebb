"""The `tidelog` command: one module per command group. Each command imports its heavy dependencies itself."""

from __future__ import annotations

from typing import Annotated

try:
    import typer
except ModuleNotFoundError as missing:  # a clone with `tidelog` installed, but without `tidelog-server`
    raise SystemExit(
        f"tidelog: this command needs {missing.name}; in a clone: pip install -e packaging/server"
    ) from None

from service.cli.client.cluster import cluster
from service.cli.client.cluster_moves import drain, move, rebalance
from service.cli.client.configs import configs
from service.cli.client.consume import consume
from service.cli.client.group import group
from service.cli.client.perf import perf
from service.cli.client.produce import produce
from service.cli.client.topic import topic
from service.cli.client.txn import txn
from service.cli.cold import cold
from service.cli.errors import ReportingGroup
from service.cli.offline.fsck import fsck
from service.cli.offline.log import log
from service.cli.offline.restore import restore
from service.cli.serve import serve
from service.cli.top.command import top
from service.cli.up import up

app = typer.Typer(
    name="tidelog",
    cls=ReportingGroup,
    no_args_is_help=True,
    help="A Kafka-compatible log whose history lives in your own bucket.",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command()(serve)
app.command()(top)
app.add_typer(topic, name="topic")
app.add_typer(configs, name="configs")
cluster.command()(move)
cluster.command()(drain)
cluster.command()(rebalance)
cluster.command()(up)
app.add_typer(cluster, name="cluster")
app.add_typer(group, name="group")
app.add_typer(txn, name="txn")
app.command()(produce)
app.command()(consume)
app.add_typer(perf, name="perf")
app.add_typer(log, name="log")
app.add_typer(cold, name="cold")
app.command()(fsck)
app.command()(restore)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"tidelog {version('tidelog')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Runs before each command."""


if __name__ == "__main__":
    app()
