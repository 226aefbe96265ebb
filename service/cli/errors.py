"""How a command fails: one line on standard error that says what to do, and an exit code.

0 done; 1 it failed, or damage was found; 2 the command line is wrong, or what it names cannot be reached.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from storage_tiers.errors import LogError


class CommandError(Exception):
    """`str(error)` is the line that the user sees."""

    exit_code = 1


class Unreachable(CommandError):
    """Nothing answers at the address that was given."""

    exit_code = 2


class ReportingGroup(TyperGroup):
    """The one place where errors become lines and exit codes. Defects keep their traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except CommandError as error:
            report(str(error))
            raise typer.Exit(error.exit_code) from None
        except LogError as error:
            report(str(error))
            raise typer.Exit(1) from None


def report(line: str) -> None:
    typer.echo(f"tidelog: {line}", err=True)
