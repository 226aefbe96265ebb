"""Which objects of a partition may be deleted: pure planners over what a manifest and a listing say.

Removed objects go once they are older than the grace by the clock of who commits, unless a pin holds them. Objects that
were never referenced go once they are older than the grace by the store's own clock, and only through `tombstoned`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from storage_tiers.cold.manifest.model import Pin, Removed
from storage_tiers.cold.stores.port import UnfinishedUpload


class Dated(Protocol):
    """A key with the store's time of its writing: `ObjectInfo`, or anything of its shape."""

    @property
    def key(self) -> str: ...

    @property
    def modified_ms(self) -> int: ...


def due_removed(items: Iterable[Removed], pins: Sequence[Pin], now_ms: int, grace_ms: int) -> list[Removed]:
    """Removed items past their grace period that no pin holds."""
    return [item for item in items if item.at.time_ms + grace_ms <= now_ms and not any(pin.holds(item) for pin in pins)]


def orphans(listed: Iterable[Dated], referenced: Collection[str], store_now_ms: int, grace_ms: int) -> list[str]:
    """Keys that are not among `referenced` and older than the grace. `listed` was read before what is referenced."""
    return [info.key for info in listed if info.key not in referenced and info.modified_ms + grace_ms <= store_now_ms]


def abandoned(uploads: Iterable[UnfinishedUpload], store_now_ms: int, grace_ms: int) -> list[UnfinishedUpload]:
    """Uploads in parts that were begun longer than the grace ago."""
    return [upload for upload in uploads if upload.started_ms + grace_ms <= store_now_ms]
