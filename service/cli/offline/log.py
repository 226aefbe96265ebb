"""`tidelog log`: dumps files on disk, with or without a running node."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.errors import CommandError, Unreachable
from service.cli.output import counted, print_json_line

if TYPE_CHECKING:
    from service.cli.offline.dump_line import Line

log = typer.Typer(no_args_is_help=True, help="Inspect log segments, indexes and manifests.")


@log.callback()
def group() -> None:
    """Keeps `dump` a subcommand. Without a callback, typer merges a single command into its group."""


@log.command()
def dump(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...",
            help="Files of a partition's directory, the directory itself, or objects downloaded from a bucket.",
        ),
    ],
    deep: Annotated[bool, typer.Option("--deep", help="Include records, and every row of a sidecar.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Print segments batch by batch and indexes entry by entry, and verify them. Exit code 1 if anything is damaged."""
    damaged = 0
    for path in _files(paths):
        if not as_json:
            _print_title(path)
        for line in _lines(path, deep):
            damaged += bool(line.damage)
            if as_json:
                print_json_line(line.json(str(path)))
            else:
                sys.stdout.write(line.text() + "\n")
    if damaged:
        raise CommandError(counted(damaged, "damaged line"))


def _print_title(path: Path) -> None:
    from storage_tiers.hot import layout

    sys.stdout.write(f"Dumping {path}\n")
    found = layout.parse_file(path.name)
    if found is not None and found.suffix == layout.LOG:
        sys.stdout.write(f"Log starting offset: {found.offset}\n")


def _files(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.exists():
            raise Unreachable(f"there is no {path}")
        if path.is_dir():
            found = sorted((child for child in path.iterdir() if _is_known(child)), key=_order)
            if not found:
                raise Unreachable(f"{path} holds no segments, indexes or checkpoints; name a partition's directory")
            yield from found
        elif _is_known(path):
            yield path
        else:
            raise Unreachable(f"{path} is not a file that can be dumped")


def _is_known(path: Path) -> bool:
    from service.cli.offline.log_files import BY_NAME, BY_SUFFIX

    known = (".log", ".idx", ".json", *BY_SUFFIX)
    return path.is_file() and (path.name in BY_NAME or path.suffix in known or path.name.endswith(".json.gz"))


def _order(path: Path) -> tuple[bool, int, bool, str]:
    """Sorts checkpoints first, then each segment's log, followed by its other files."""
    from storage_tiers.hot import layout

    found = layout.parse_file(path.name)
    return found is not None, found.offset if found else 0, path.suffix != layout.LOG, path.name


def _lines(path: Path, deep: bool) -> Iterator[Line]:
    """The lines of one file. A file that cannot be read is damage. A file that was removed after the listing is not."""
    from service.cli.offline.dump_line import damage, note
    from storage_tiers.errors import LogError

    try:
        yield from _dispatch(path, deep)
    except LogError as error:
        yield damage(str(error))
    except FileNotFoundError:
        yield note("the node has removed the file meanwhile")
    except OSError as error:
        yield damage(f"the file cannot be read: {error.strerror}")


def _dispatch(path: Path, deep: bool) -> Iterator[Line]:
    from service.cli.offline import log_files, tier_files

    if path.suffix == ".log":
        return log_files.dump_log(path, deep=deep)
    if path.suffix == ".idx":
        return tier_files.dump_sidecar(path, deep=deep)
    if path.suffix == ".json":
        return tier_files.dump_document(path)
    if path.suffix == ".gz":
        return tier_files.dump_page(path)
    reader = log_files.BY_NAME.get(path.name) or log_files.BY_SUFFIX[path.suffix]
    return reader(path)
