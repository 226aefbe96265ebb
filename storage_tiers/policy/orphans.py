"""Chooses the objects of a partition that may be deleted: pure planners over a manifest and a listing.

A removed object is deleted once its removal is older than the grace, by the committing broker's clock, unless a pin holds it.
An object that was never referenced is deleted once it is older than the grace by the store's clock, and only after a commit
has tombstoned it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from storage_tiers.cold.manifest.model import Pin, Removed
from storage_tiers.cold.stores.port import UnfinishedUpload


class Dated(Protocol):
    """A key with its modification time by the store's clock (ms): `ObjectInfo`, or any type of its shape."""

    @property
    def key(self) -> str: ...

    @property
    def modified_ms(self) -> int: ...


def due_removed(items: Iterable[Removed], pins: Sequence[Pin], now_ms: int, grace_ms: int) -> list[Removed]:
    """Removed items past their grace period that no pin holds."""
    return [item for item in items if item.at.time_ms + grace_ms <= now_ms and not any(pin.holds(item) for pin in pins)]


def orphans(listed: Iterable[Dated], referenced: Collection[str], store_now_ms: int, grace_ms: int) -> list[str]:
    """Keys older than the grace that are not in `referenced`. The caller reads `listed` before `referenced`."""
    return [info.key for info in listed if info.key not in referenced and info.modified_ms + grace_ms <= store_now_ms]


def abandoned(uploads: Iterable[UnfinishedUpload], store_now_ms: int, grace_ms: int) -> list[UnfinishedUpload]:
    """Multipart uploads that began longer ago than the grace."""
    return [upload for upload in uploads if upload.started_ms + grace_ms <= store_now_ms]
