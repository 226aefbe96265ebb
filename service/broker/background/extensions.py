"""Tracks the manifest extensions under way, to know which records the bucket may show after they end.

An extension carries the log start at the time when it began. If log start rises meanwhile, the bucket shows deleted records
from the extension's commit until the commit that hides them. So DeleteRecords answers only when that is no longer possible.

An extension with an unknown outcome may have taken place. It counts as under way until the outcome of a later one is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from service.broker.partition.partition import Partition
from storage_tiers.cold.segments.offloader import ExtendJob
from storage_tiers.errors import TierUnavailable


@dataclass(slots=True)
class _Extension:
    base: int
    log_start: int
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Extensions:
    """The extensions under way, at most one for each partition."""

    def __init__(self) -> None:
        self._of: dict[Partition, _Extension] = {}

    @contextmanager
    def under_way(self, partition: Partition, job: ExtendJob) -> Iterator[None]:
        """Encloses the request for `job` and the acceptance of its manifest. An extension with an unknown outcome stays
        registered."""
        earlier, log_start = self._of.get(partition), job.log_start
        if earlier is not None:
            log_start = min(log_start, earlier.log_start)  # an extension with unknown outcome may show more
        extension = self._of[partition] = _Extension(job.base, log_start)
        try:
            yield
        except (TierUnavailable, asyncio.CancelledError):
            raise
        except BaseException:
            self._of.pop(partition, None)
            raise
        else:
            self._of.pop(partition, None)
        finally:
            extension.ended.set()

    async def hiding(self, partition: Partition, log_start: int) -> None:
        """Returns once no extension can show records below `log_start` that the accepted manifest does not show.
        Raises TierUnavailable if the outcome of the last extension is unknown."""
        extension = self._of.get(partition)
        while extension is not None and max(extension.base, extension.log_start) < log_start:
            if extension.ended.is_set():
                raise TierUnavailable(
                    f"{partition.partition}: deleted here, but an offload of records below offset {log_start} may have "
                    "reached the bucket; retry"
                )
            await extension.ended.wait()
            extension = self._of.get(partition)

    def __contains__(self, partition: object) -> bool:
        """Whether an extension of the partition is under way, or one with an unknown outcome may have taken place."""
        return partition in self._of

    async def ended(self, partition: Partition) -> None:
        """Returns once no extension of the partition is under way."""
        while (extension := self._of.get(partition)) is not None and not extension.ended.is_set():
            await extension.ended.wait()

    def forget(self, partition: Partition) -> None:
        gone = self._of.pop(partition, None)
        if gone is not None:
            gone.ended.set()
