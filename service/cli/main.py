"""The `tidelog` command: one module per command group. Each command imports its heavy dependencies itself."""

from __future__ import annotations

import sys
from typing import Annotated

try:
    import typer
except ModuleNotFoundError as missing:  # a clone with `tidelog` installed, but without `tidelog-server`
    raise SystemExit(
        f"tidelog: this command needs {missing.name}; in a clone: pip install -e packaging/server"
    ) from None

from service.cli.errors import ReportingGroup
from service.cli.serve import serve

app = typer.Typer(
    name="tidelog",
    cls=ReportingGroup,
    no_args_is_help=True,
    help="A Kafka-compatible log whose history lives in your own bucket.",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command()(serve)
if sys.argv[1:2] != ["serve"]:  # a node's start loads no other command, because clients wait for it
    from service.cli.commands import add_commands

    add_commands(app)


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
