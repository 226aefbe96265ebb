"""Ranged GETs into files of the cache directory: bounded, repeated while that may help, verified before they are visible.

Invariants: a file appears under its final name only after every byte of it was compared with its checksum, and never
changes afterwards; of equal questions at one time only one reaches the store; a failure leaves no file and is remembered
by nobody; memory in flight stays within the byte budget, urgent downloads first.

The files need no fsync: the cache is emptied at every start.
"""

from __future__ import annotations

import asyncio
import os
from typing import NamedTuple

from storage_tiers.clock import Rng
from storage_tiers.cold.byte_budget import ByteBudget, Ticket
from storage_tiers.cold.patient_reads import GetStore, PatientReads
from storage_tiers.cold.tier_questions import Done, FetchChunk, FetchObject, Hurry, ReadyFile
from storage_tiers.cold.tier_settings import CHUNK_BYTES, MAX_METADATA_OBJECT_BYTES, MIB, TierSettings
from storage_tiers.errors import InvalidRequest, StorageError, TierCorrupt
from storage_tiers.records.checksum import crc32c

#: What names a download: object, position, length, checksums (None: unverified).
Wanted = tuple[str, int, int, tuple[int, ...] | None]


class Flight(NamedTuple):
    task: asyncio.Task[ReadyFile]
    ticket: Ticket


class Downloads:
    def __init__(self, store: GetStore, directory: str, settings: TierSettings, reads: PatientReads, rng: Rng) -> None:
        self._store = store
        self._directory = directory
        self._reads = reads
        self._rng = rng
        self._flying: dict[Wanted, Flight] = {}
        self.budget = ByteBudget(settings.download_bytes_in_flight, settings.download_connections)

    async def fetch_chunk(self, question: FetchChunk) -> ReadyFile:
        """TierCorrupt if the object's bytes are fewer or others than the checksums say."""
        if not 0 < question.length <= CHUNK_BYTES or len(question.crcs) != -(-question.length // MIB):
            raise InvalidRequest(f"{len(question.crcs)} checksums do not fit a chunk of {question.length} bytes")
        return await self._once(question, question.crcs)

    async def fetch_object(self, question: FetchObject) -> ReadyFile:
        """TierCorrupt if the object is shorter."""
        if not 0 < question.length <= MAX_METADATA_OBJECT_BYTES:
            raise InvalidRequest(f"{question.length} bytes of {question.key} are not fetched as one object")
        return await self._once(question, None)

    async def hurry(self, question: Hurry) -> Done:
        for wanted, flight in self._flying.items():
            if wanted[:3] == (question.key, question.position, question.length):
                self.budget.hurry(flight.ticket)
        return Done()

    async def close(self) -> None:
        """Gives up what is under way and leaves no file of it."""
        flying = [flight.task for flight in self._flying.values()]
        for task in flying:
            task.cancel()
        await asyncio.gather(*flying, return_exceptions=True)

    async def _once(self, question: FetchChunk | FetchObject, crcs: tuple[int, ...] | None) -> ReadyFile:
        wanted = (question.key, question.position, question.length, crcs)
        flight = self._flying.get(wanted)
        if flight is None:
            ticket = self.budget.ticket(question.length, urgent=question.urgent)
            flight = Flight(asyncio.create_task(self._download(wanted, ticket)), ticket)
            self._flying[wanted] = flight
            flight.task.add_done_callback(lambda done: self._landed(wanted, done))
        elif question.urgent:
            self.budget.hurry(flight.ticket)
        # Shielded: whoever else waits for it, or the next who asks, still has a use for it.
        return await asyncio.shield(flight.task)

    def _landed(self, wanted: Wanted, task: asyncio.Task[ReadyFile]) -> None:
        del self._flying[wanted]
        if not task.cancelled():
            task.exception()  # seen, should all who asked have gone

    async def _download(self, wanted: Wanted, ticket: Ticket) -> ReadyFile:
        key, position, length, crcs = wanted
        async with self.budget.hold(ticket):
            data = await self._get(key, position, length)
            if len(data) != length:
                raise TierCorrupt(
                    f"{key} ends at byte {position + len(data)}, before byte {position + length} that its manifest "
                    "promises; run `tidelog fsck`"
                )
            if crcs is not None:
                _verify(data, wanted)
            name = os.path.join(self._directory, self._rng.token(16).hex())
            await asyncio.to_thread(_write_file, name, data)
        return ReadyFile(name, length)

    async def _get(self, key: str, position: int, length: int) -> bytes:
        async def attempt() -> bytes:
            store = await self._store()
            return (await store.get(key, position, length)).data

        return await self._reads.until_answered(f"bytes of {key}", attempt)


def _verify(data: bytes, wanted: Wanted) -> None:
    key, position, _, crcs = wanted
    view = memoryview(data)
    for index, expected in enumerate(crcs or ()):
        found = crc32c(view[index * MIB : (index + 1) * MIB])
        if found != expected:
            raise TierCorrupt(
                f"{key}: the MiB at byte {position + index * MIB} has CRC-32C {found:08x}, its sidecar says "
                f"{expected:08x}; its bytes were changed in the bucket. Run `tidelog fsck`"
            )


def _write_file(name: str, data: bytes) -> None:
    """All of the file or nothing: written under a temporary name, then renamed."""
    temporary = f"{name}.tmp"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)
        os.rename(temporary, name)
    except OSError as error:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        raise StorageError(f"cannot write the cache file {name}: {error.strerror}; free some space") from error
