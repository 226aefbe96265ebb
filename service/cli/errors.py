"""The failure of a command: an exit code, and one line on standard error that says what to do.

Exit codes: 0 success; 1 failure, or damage found; 2 wrong command line, or the node or store is unreachable.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from service.cli.kafka_options import explain_option
from storage_tiers.errors import LogError

#: Errors of writing to a disk. A closed pipe (EPIPE) is not among them, because typer then ends the command silently.
_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

#: Key of a context's `meta`: the source of the node's address, if it is not the command line.
ADDRESS_ORIGIN = "tidelog.address_origin"


class CommandError(Exception):
    """`str(error)` is the line printed for the user."""

    exit_code = 1


class Unreachable(CommandError):
    """Nothing answers at the given address."""

    exit_code = 2


class NodeUnreachable(Unreachable):
    """No node answers at the address. The error names the source of an address that is not from the command line."""


class Misconfigured(CommandError):
    """A file that the command reads has invalid content."""

    exit_code = 2


class ReportingGroup(TyperGroup):
    """Turns errors into one line and an exit code; all commands run inside it. Defects keep their traceback."""

    def invoke(self, ctx: Any) -> Any:
        if sys.stdout is None:  # the process was started with its standard output closed
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
        except typer.TyperException as error:
            explain_option(error)
            raise
        except OSError as error:
            if error.filename is not None or error.errno not in _CANNOT_WRITE:
                raise
            report(f"cannot write the output: {error.strerror}")
            # The interpreter would flush the buffer at exit and fail again, with a traceback.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise typer.Exit(1) from None


def report(line: str) -> None:
    typer.echo(f"tidelog: {line}", err=True)
