"""Output of commands: tables for people, JSON for scripts, and one notation for sizes and times.

If the output is not a terminal, tables are as wide as their content, so that tools such as `grep` and `awk` get whole lines.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


def print_json(value: Any) -> None:
    """Prints one document. Keys keep their order."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_json_line(value: Mapping[str, Any]) -> None:
    typer.echo(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns of numbers are aligned to the right. None prints as `-`. If there are no rows, a note goes to standard error."""
    listed = [[*row] for row in rows]
    numeric = [bool(listed) and all(isinstance(row[i], int | None) for row in listed) for i in range(len(columns))]
    texts = [["-" if cell is None else str(cell) for cell in row] for row in listed]
    if sys.stdout.isatty():
        _print_rich_table(columns, texts, numeric)
    else:
        _print_plain_table(columns, texts, numeric)
    if not listed:
        typer.echo("nothing to list", err=True)


def _print_plain_table(columns: Sequence[str], texts: Sequence[Sequence[str]], numeric: Sequence[bool]) -> None:
    lines = [columns, *texts]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        cells = [c.rjust(w) if right else c.ljust(w) for c, w, right in zip(line, widths, numeric, strict=True)]
        typer.echo("  ".join(cells).rstrip())


def _print_rich_table(columns: Sequence[str], texts: Sequence[Sequence[str]], numeric: Sequence[bool]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for name, right in zip(columns, numeric, strict=True):
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in texts:
        table.add_row(*map(Text, row))
    Console(highlight=False).print(table)


def counted(count: int, noun: str) -> str:
    """A number and its noun, such as `1 record` or `2 records`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def size(count: int) -> str:
    """A number of bytes for people, such as 512 B or 1.5 MiB."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def moment(unix_ms: int) -> str:
    """A time in ISO 8601, in UTC with milliseconds; `-` for an unknown (negative) time."""
    if unix_ms < 0:
        return "-"
    try:
        return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return f"{unix_ms} ms"


def json_bytes(name: str, content: bytes | None) -> dict[str, str | None]:
    """`{name: text}`, or `{name_base64: ...}` if the content is not UTF-8."""
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}
