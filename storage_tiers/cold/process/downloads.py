"""Ranged GETs into files of the cache directory: bounded, retried until a deadline, verified before the files are visible.

Invariants: a file appears under its final name only when it is whole (`chunk_file.py`). A failed or cancelled download leaves
no file and is never cached. Bytes in flight stay within the byte budget; urgent downloads come first.

Identical questions do not share a download: each gets a file of its own. The broker coalesces its requests. A chunk that
another session has downloaded is copied from its file, if that is still there (`known_chunks.py`).
"""

from __future__ import annotations

import asyncio
import os

from storage_tiers.clock import Rng
from storage_tiers.cold.process.byte_budget import ByteBudget, Ticket
from storage_tiers.cold.process.chunk_file import ChunkFile
from storage_tiers.cold.process.known_chunks import KnownChunks, copied
from storage_tiers.cold.process.operations import FetchChunk, FetchObject, RaisePriority, ReadyFile
from storage_tiers.cold.process.patient_reads import GetStore, PatientReads
from storage_tiers.cold.process.settings import CHUNK_BYTES, MAX_METADATA_OBJECT_BYTES, MIB
from storage_tiers.errors import InvalidRequest


class Downloads:
    """The downloads of one session, the `owner` in the budget, into files below `directory`."""

    def __init__(
        self,
        store: GetStore,
        directory: str,
        budget: ByteBudget,
        owner: int,
        reads: PatientReads,
        rng: Rng,
        known: KnownChunks,
    ) -> None:
        self._store = store
        self._directory = directory
        self._reads = reads
        self._rng = rng
        self._known = known
        self._wanted: dict[Ticket, FetchChunk | FetchObject] = {}
        self._owner = owner
        self.budget = budget

    async def fetch_chunk(self, question: FetchChunk) -> ReadyFile:
        """Downloads a chunk, or copies it from another session's cache. TierCorrupt if the object is too short or fails a
        checksum."""
        if not 0 < question.length <= CHUNK_BYTES or len(question.crcs) != -(-question.length // MIB):
            raise InvalidRequest(f"{len(question.crcs)} checksums do not fit a chunk of {question.length} bytes")
        return await self._download(question, question.crcs)

    async def fetch_object(self, question: FetchObject) -> ReadyFile:
        """Downloads bytes of an object, unverified. TierCorrupt if the object is too short."""
        if not 0 < question.length <= MAX_METADATA_OBJECT_BYTES:
            raise InvalidRequest(f"{question.length} bytes of {question.key} are not fetched as one object")
        return await self._download(question, None)

    async def raise_priority(self, question: RaisePriority) -> None:
        for ticket, wanted in self._wanted.items():
            if (wanted.key, wanted.position, wanted.length) == (question.key, question.position, question.length):
                self.budget.raise_priority(ticket)

    async def _download(self, question: FetchChunk | FetchObject, crcs: tuple[int, ...] | None) -> ReadyFile:
        """Downloads bytes into a file of their own. Without `crcs` nothing is verified."""
        ticket = self.budget.ticket(question.length, urgent=question.urgent, owner=self._owner)
        self._wanted[ticket] = question
        try:
            async with self.budget.hold(ticket):
                name = os.path.join(self._directory, self._rng.token(16).hex())
                file = ChunkFile(name, question.key, question.position, question.length, crcs)
                try:
                    is_copy = await self._copy_into(question, file)
                    if not is_copy:
                        await self._get_into(question, file)
                    file.finish()
                except BaseException:
                    file.discard()
                    raise
            if isinstance(question, FetchChunk):
                self._known.add(question, self._owner, name)
            return ReadyFile(name, question.length, is_copy)
        finally:
            del self._wanted[ticket]

    async def _copy_into(self, question: FetchChunk | FetchObject, file: ChunkFile) -> bool:
        """Copies a chunk that is on this machine's disk. False if there is none."""
        if not isinstance(question, FetchChunk) or (path := self._known.find(question, self._owner)) is None:
            return False
        # In a thread, since the file may have left the page cache. Shielded: the thread must not outlive the descriptor.
        work = asyncio.ensure_future(asyncio.to_thread(copied, path, question.length, file))
        try:
            is_copy = await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait((work,))
            raise
        if not is_copy:
            self._known.forget(question, path)
        return is_copy

    async def _get_into(self, question: FetchChunk | FetchObject, file: ChunkFile) -> None:
        async def attempt() -> None:
            store = await self._store()
            file.restart()
            await store.get_into(question.key, question.position, question.length, file.write)

        await self._reads.retry_until_deadline(f"bytes of {question.key}", attempt)
