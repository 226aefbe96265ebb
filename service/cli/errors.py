"""How a command fails: one line on standard error that says what to do, and an exit code.

0 done; 1 it failed, or damage was found; 2 the command line is wrong, or what it names cannot be reached.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from storage_tiers.errors import LogError

#: What writing to a full disk meets. A closed pipe (EPIPE) is no failure worth a word: typer ends the command silently.
_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

#: Of a context's `meta`: what named the node's address, unless the command line did.
ADDRESS_ORIGIN = "tidelog.address_origin"


class CommandError(Exception):
    """`str(error)` is the line that the user sees."""

    exit_code = 1


class Unreachable(CommandError):
    """Nothing answers at the address that was given."""

    exit_code = 2


class NodeUnreachable(Unreachable):
    """No node answers there. Where the address was not given on the command line, the line says where it is from."""


class Misconfigured(CommandError):
    """A file that the command reads says what it cannot mean."""

    exit_code = 2


class ReportingGroup(TyperGroup):
    """The one place where errors become lines and exit codes. Defects keep their traceback."""

    def invoke(self, ctx: Any) -> Any:
        if sys.stdout is None:  # closed by the caller: nobody wants to see anything
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - as long as the process lives
        try:
            return super().invoke(ctx)
        except CommandError as error:
            origin = ctx.meta.get(ADDRESS_ORIGIN) if isinstance(error, NodeUnreachable) else None
            report(f"{error} (the address is from {origin})" if origin else str(error))
            raise typer.Exit(error.exit_code) from None
        except LogError as error:
            report(str(error))
            raise typer.Exit(1) from None
        except OSError as error:
            if error.filename is not None or error.errno not in _CANNOT_WRITE:
                raise
            report(f"cannot write the output: {error.strerror}")
            # What is buffered would fail again at the interpreter's end, with a traceback.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise typer.Exit(1) from None


def report(line: str) -> None:
    typer.echo(f"tidelog: {line}", err=True)
