"""Ranged GETs into files of the cache directory: bounded, repeated while that may help, verified before they are visible.

Invariants: a file appears under its final name only when it is whole (`chunk_file.py`); of equal questions at one time only
one reaches the store, and goes on while somebody waits for it; a failure leaves no file and is remembered by nobody; bytes in
flight stay within the byte budget, urgent downloads first.
"""

from __future__ import annotations

import asyncio
import os

from storage_tiers.clock import Rng
from storage_tiers.cold.process.byte_budget import ByteBudget, Ticket
from storage_tiers.cold.process.chunk_file import ChunkFile
from storage_tiers.cold.process.operations import FetchChunk, FetchObject, Hurry, ReadyFile
from storage_tiers.cold.process.patient_reads import GetStore, PatientReads
from storage_tiers.cold.process.settings import CHUNK_BYTES, MAX_METADATA_OBJECT_BYTES, MIB, TierSettings
from storage_tiers.errors import InvalidRequest

#: What names a download: object, position, length, checksums (None: unverified).
Wanted = tuple[str, int, int, tuple[int, ...] | None]


class Flight:
    """`waiting` counts who waits for it; `told` is set once somebody was told of the file, whose it then is."""

    __slots__ = ("task", "ticket", "told", "waiting")

    def __init__(self, task: asyncio.Task[ReadyFile], ticket: Ticket) -> None:
        self.task = task
        self.ticket = ticket
        self.waiting = 0
        self.told = False


class Downloads:
    def __init__(self, store: GetStore, directory: str, settings: TierSettings, reads: PatientReads, rng: Rng) -> None:
        self._store = store
        self._directory = directory
        self._reads = reads
        self._rng = rng
        self._flying: dict[Wanted, Flight] = {}
        self._given_up: set[asyncio.Task[ReadyFile]] = set()
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
        await asyncio.gather(*flying, *self._given_up, return_exceptions=True)

    async def _once(self, question: FetchChunk | FetchObject, crcs: tuple[int, ...] | None) -> ReadyFile:
        wanted = (question.key, question.position, question.length, crcs)
        flight = self._flying.get(wanted)
        if flight is None:
            ticket = self.budget.ticket(question.length, urgent=question.urgent)
            flight = Flight(asyncio.create_task(self._download(wanted, ticket)), ticket)
            self._flying[wanted] = flight
            flight.task.add_done_callback(lambda _: self._landed(wanted, flight))
        elif question.urgent:
            self.budget.hurry(flight.ticket)
        flight.waiting += 1
        try:
            # Shielded: whoever else waits for it still has a use for it.
            ready = await asyncio.shield(flight.task)
            flight.told = True
            return ready
        finally:
            flight.waiting -= 1
            if flight.waiting == 0 and not flight.told:
                self._give_up(wanted, flight)

    def _give_up(self, wanted: Wanted, flight: Flight) -> None:
        """Nobody waits for it any more: it neither stands before others, nor leaves a file of which nobody knows."""
        if not flight.task.done():
            # At once: who asks next must not be given what is ending.
            self._forget(wanted, flight)
            flight.task.cancel()
            self._given_up.add(flight.task)
            flight.task.add_done_callback(self._given_up.discard)
        elif not flight.task.cancelled() and flight.task.exception() is None:
            try:
                os.unlink(flight.task.result().path)
            except OSError:
                pass  # the cache directory may be removed, and the file with it

    def _landed(self, wanted: Wanted, flight: Flight) -> None:
        self._forget(wanted, flight)
        if not flight.task.cancelled():
            flight.task.exception()  # seen, should all who asked have gone

    def _forget(self, wanted: Wanted, flight: Flight) -> None:
        if self._flying.get(wanted) is flight:
            del self._flying[wanted]

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
