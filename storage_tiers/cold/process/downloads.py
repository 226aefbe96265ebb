"""Ranged GETs into files of the cache directory: bounded, repeated while that may help, verified before they are visible.

Invariants: a file appears under its final name only when it is whole (`chunk_file.py`); of equal questions at one time only
one reaches the store; a failure leaves no file and is remembered by nobody; bytes in flight stay within the byte budget,
urgent downloads first.
"""

from __future__ import annotations

import asyncio
import os
from typing import NamedTuple

from storage_tiers.clock import Rng
from storage_tiers.cold.process.byte_budget import ByteBudget, Ticket
from storage_tiers.cold.process.chunk_file import ChunkFile
from storage_tiers.cold.process.operations import FetchChunk, FetchObject, Hurry, ReadyFile
from storage_tiers.cold.process.patient_reads import GetStore, PatientReads
from storage_tiers.cold.process.settings import CHUNK_BYTES, MAX_METADATA_OBJECT_BYTES, MIB, TierSettings
from storage_tiers.errors import InvalidRequest

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

    async def hurry(self, question: Hurry) -> None:
        for wanted, flight in self._flying.items():
            if wanted[:3] == (question.key, question.position, question.length):
                self.budget.hurry(flight.ticket)

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
            name = os.path.join(self._directory, self._rng.token(16).hex())
            file = ChunkFile(name, key, position, length, crcs)
            try:
                await self._get_into(key, position, length, file)
                file.finish()
            except BaseException:
                file.discard()
                raise
        return ReadyFile(name, length)

    async def _get_into(self, key: str, position: int, length: int, file: ChunkFile) -> None:
        async def attempt() -> None:
            store = await self._store()
            file.restart()
            await store.get_into(key, position, length, file.write)

        await self._reads.until_answered(f"bytes of {key}", attempt)
