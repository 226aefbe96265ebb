"""Files of a directory that a running node changes meanwhile.

`Path.rglob` fails if a directory disappears between its listing and its visit, as when a store removes empty directories.
`glob` skips it.
"""

from __future__ import annotations

from glob import iglob
from pathlib import Path


def live_files(directory: Path, pattern: str) -> list[Path]:
    """The paths that match now, sorted; `**` matches any number of directories."""
    return sorted(
        directory / found for found in iglob(pattern, root_dir=directory, recursive=True, include_hidden=True)
    )


def read_live(path: Path) -> bytes | None:
    """The file's bytes; None if it is gone."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
