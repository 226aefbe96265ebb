"""Keeps a snapshot of the metadata in the bucket, in case this disk is lost (`service.takeover`).

The snapshot holds what the bucket does not otherwise have: configs of brokers, the next producer id, feature levels, topics
without offloaded records. While the store answers, it is at most `tidelog.metadata.snapshot.interval.ms` old. It is written
only after a change, and at most once per interval.

The very last changes may be missing. A take-over skips epochs and producer ids that they may have used.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable

from service.broker.background.store_access import StoreAccess
from service.metadata import frames
from service.metadata import records_pb2 as pb
from service.metadata.following import Metadata
from service.metadata.image import MetadataImage
from service.metadata.snapshot import to_records
from storage_tiers import events
from storage_tiers.clock import Clock
from storage_tiers.cold.process.cluster_operations import PutSnapshot
from storage_tiers.errors import Advice, LogError
from storage_tiers.records.checksum import crc32c

log = logging.getLogger(__name__)

#: Differs from the names of log files, which `tidelog log dump` reads.
FILE_NAME = "metadata-snapshot"


class MetadataSnapshots:
    """Writes the snapshot when the metadata has changed; a failure is logged once and retried."""

    def __init__(
        self,
        metadata: Metadata,
        access: StoreAccess,
        directory: str,
        *,
        interval_ms: Callable[[], int],
        clock: Clock,
    ) -> None:
        """While a snapshot is uploaded, its file is in `directory`. That must not be the chunk cache's directory, because when
        a tier process ends, all files there except chunks are removed, and an idle tier process may end when a snapshot is
        due."""
        self._metadata = metadata
        self._access = access
        self._path = os.path.join(directory, FILE_NAME)
        self._interval_ms = interval_ms
        self._clock = clock
        self._written: MetadataImage | None = None
        self._next = 0.0
        self._failing = False

    async def tick(self) -> None:
        """Called about every second. Writes a snapshot if one is due. Raises LogError only with the advice STOP."""
        writer, image, now = self._access.writer, self._metadata.image, self._clock.monotonic()
        if writer is None or not self._access.is_open or image is self._written or now < self._next:
            return
        self._next = now + self._interval_ms() / 1000
        index, term = self._metadata.applied
        try:
            length, crc = await asyncio.to_thread(self._write, image, index, term)
            question = PutSnapshot(image.cluster_id, writer.incarnation or 0, index, term, self._path, length, crc)
            await self._access.client.ask(question)
        except (LogError, OSError) as error:
            if isinstance(error, LogError) and error.advice is Advice.STOP:
                raise
            if not self._failing:
                events.warning(log, "metadata.snapshot_waits", error=error)
            self._failing = True
            return
        finally:
            with contextlib.suppress(OSError):  # the next round writes it again
                os.unlink(self._path)
        self._failing = False
        self._written = image

    def _write(self, image: MetadataImage, index: int, term: int) -> tuple[int, int]:
        batch = pb.MetadataBatch(records=to_records(image)).SerializeToString()
        content = frames.encode(frames.Frame(term, index, batch))
        with open(self._path, "wb") as file:
            file.write(content)
        return len(content), crc32c(content)
