"""An object that tests of the tier process download, with its checksums and the request that fetches it."""

from __future__ import annotations

import os
from pathlib import Path

from storage_tiers.cold.process.operations import (
    FetchChunk,
)
from storage_tiers.cold.process.settings import MIB
from storage_tiers.records.checksum import crc32c

BYTES = os.urandom(2 * MIB + 700_000)
CRCS = tuple(crc32c(BYTES[at : at + MIB]) for at in range(0, len(BYTES), MIB))


def chunk(key: str = "a", *, urgent: bool = True) -> FetchChunk:
    return FetchChunk(key, 0, len(BYTES), CRCS, urgent)


def files(directory: Path) -> list[Path]:
    return list((directory / "cache").iterdir())
