"""The metadata log's interface for the node: propose records, wait until they are durable, read the image.

The node is the only voter of its controller quorum, so `propose` acts like a Raft leader without peers. Proposals made while
the disk is busy share the next fsync (group commit). There are two images. `image`, after all durable entries, answers clients.
`proposed`, after all accepted entries, is the base of the next plan, so that two requests for the same name cannot both succeed
while the first waits for the disk.

Invariants: entries apply in the order proposed; `image` shows durable entries only; a proposal is whole or absent. When an
entry cannot be written, its proposals and all later ones fail with StorageError, `proposed` falls back to `image`, and the next
proposal tries the disk again.

Not thread-safe: call it on the event loop. Disk work runs in one thread of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from grpc_api.limits import MAX_MESSAGE_BYTES
from service.metadata import records_pb2 as pb
from service.metadata.following import Listener
from service.metadata.image import MetadataImage
from service.metadata.parts import Changes
from service.metadata.recent import Entry, RecentEntries
from service.metadata.store import LOG_BYTES_PER_SNAPSHOT, MetadataStore, Recovered
from storage_tiers import events
from storage_tiers.clock import Rng
from storage_tiers.errors import InvalidRequest, StorageError
from storage_tiers.files import Files

#: Most bytes of one proposal's encoded records. Creating 10,000 partitions takes 0.4 MB. The bound is below MAX_MESSAGE_BYTES,
#: because a message to a broker holds one entry and its position.
MAX_PROPOSAL_BYTES = MAX_MESSAGE_BYTES - (4 << 10)
#: Most bytes of the proposals that share an fsync, and so an entry.
MAX_GROUP_BYTES = MAX_PROPOSAL_BYTES
#: Most records of the proposals that share an entry; one proposal may have more. Listeners look at all changes of an entry in
#: one turn of the loop.
MAX_GROUP_RECORDS = 5_000
#: A term is above the last one by a random number up to this. Otherwise two starts of copies of one directory would have the
#: same term, and a broker that follows one of them would take the other's entries for the same ones. Kafka's DescribeQuorum
#: shows the term in 32 bits, which a million starts use up.
MOST_TERM_STEP = 1 << 12
#: Most bytes of all proposals that wait for the disk; beyond them `propose` raises a retriable StorageError.
MAX_WAITING_BYTES = 64 << 20

_logger = logging.getLogger(__name__)


class _Proposal(NamedTuple):
    payload: bytes
    records: int
    image: MetadataImage
    done: asyncio.Future[int]


class MetadataLog:
    """`MetadataLog.open(data_dir, files, rng)` may be called before the event loop runs; the rest must be called on the loop:

    image -> MetadataImage                            after all durable entries
    proposed -> MetadataImage                         after all accepted ones: plan on this
    propose(records) -> asyncio.Future[int]           the entry's index, once durable and applied to `image`
    newest_waiting -> asyncio.Future[int] | None      of the last proposal that is not durable yet
    subscribe(listener)                               listener(image, changes) after every change of `image`
    recent -> RecentEntries                           up to the last entry that is applied to `image`
    await close()
    """

    #: The controller is in this process.
    controller_id: int | None = None

    def __init__(self, store: MetadataStore, recovered: Recovered, rng: Rng) -> None:
        self._store = store
        self._term = recovered.term + 1 + int.from_bytes(rng.token(2)) % MOST_TERM_STEP
        image = recovered.image
        self.recent = RecentEntries(recovered.index, recovered.term)
        self._image = image
        self._proposed = image
        self._waiting: deque[_Proposal] = deque()
        self._waiting_bytes = 0
        #: The last accepted proposal's future; unset before the first proposal.
        self._newest: asyncio.Future[int]
        self._listeners: list[Listener] = []
        #: Number of writes that have failed since opening.
        self.refused = 0
        self._writer: asyncio.Task[None] | None = None
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metadata-log")
        self._closed = False

    @classmethod
    def open(
        cls, data_dir: str, files: Files, rng: Rng, *, log_bytes_per_snapshot: int = LOG_BYTES_PER_SNAPSHOT
    ) -> MetadataLog:
        """Creates or recovers `<data_dir>/__cluster_metadata-0/`; blocking. `data_dir` must exist and be locked by this
        process. Every opening starts a new term, and its first entry records the term.

        Raises MetadataCorrupt if the log is damaged (the message names the position and the remedy), StorageError on an I/O
        error.
        """
        try:
            store, recovered = MetadataStore.open(data_dir, files, log_bytes_per_snapshot=log_bytes_per_snapshot)
        except OSError as error:
            raise StorageError(f"the metadata log in {data_dir} cannot be opened: {error}") from error
        return cls(store, recovered, rng)

    @property
    def image(self) -> MetadataImage:
        return self._image

    @property
    def proposed(self) -> MetadataImage:
        return self._proposed

    @property
    def term(self) -> int:
        """The current term, above that of every entry found at opening."""
        return self._term

    @property
    def applied(self) -> tuple[int, int]:
        return self.recent.end

    @property
    def last_index(self) -> int:
        """Index of the last durable entry; 0 before the first. Several proposals may share one entry."""
        return self._store.index

    @property
    def path(self) -> str:
        """Path of the file to which entries are appended; changes with each snapshot."""
        return self._store.path

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Calls `listener(image, changes)` on the loop after each change of `image`, before the proposers resume. One call may
        cover several changes: `changes` holds everything since the last call. The returned function unsubscribes the
        listener."""
        self._listeners.append(listener)
        return partial(self._listeners.remove, listener)

    def propose(self, records: Sequence[pb.MetadataRecord]) -> asyncio.Future[int]:
        """Appends `records` as one atomic batch. The future resolves to the index of their entry once they are durable and
        applied. It fails with StorageError if they could not be written (nothing changed; retry later).

        Raises immediately, with nothing proposed: MetadataCorrupt if the records do not match the state (a defect of the
        planner), InvalidRequest if they are too large, StorageError if too many proposals wait or the log is closed.
        """
        if self._closed:
            raise StorageError("the metadata log is closed: the node is stopping")
        if not self._proposed.terms or self._proposed.terms[-1].term != self._term:
            # Nothing is waiting: a first entry that could not be written has left `proposed` without the term.
            began = pb.TermRecord(term=self._term, offset=self._store.index + 1)
            records = [*records, pb.MetadataRecord(term=began)]
        payload = pb.MetadataBatch(records=records).SerializeToString()
        if len(payload) > MAX_PROPOSAL_BYTES:
            raise InvalidRequest(
                f"the change takes {len(payload)} bytes of metadata, more than {MAX_PROPOSAL_BYTES}: "
                "split it into smaller requests"
            )
        if self._waiting_bytes + len(payload) > MAX_WAITING_BYTES:
            raise StorageError("too many metadata changes wait for the disk; retry later")
        self._proposed = self._proposed.apply_batch(records)
        proposal = _Proposal(payload, len(records), self._proposed, asyncio.get_running_loop().create_future())
        self._waiting.append(proposal)
        self._newest = proposal.done
        self._waiting_bytes += len(payload)
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write())
        return proposal.done

    @property
    def newest_waiting(self) -> asyncio.Future[int] | None:
        """The future of the last accepted proposal; None if all accepted proposals are in `image` or failed."""
        return self._newest if self._waiting or self._writer is not None else None

    async def settled(self) -> None:
        """Returns once all proposals accepted so far are in `image`, immediately if none is waiting. Raises StorageError if the
        last one could not be written."""
        if (newest := self.newest_waiting) is not None:
            await asyncio.shield(newest)

    async def close(self) -> None:
        """Waits for all proposals, then closes the file."""
        self._closed = True
        if self._writer is not None:
            await self._writer
        await asyncio.get_running_loop().run_in_executor(self._executor, self._store.close)
        self._executor.shutdown(wait=False)

    # --- the writer -----------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        try:
            while self._waiting:
                await self._write_group(self._take_group())
        finally:
            self._writer = None

    def _take_group(self) -> list[_Proposal]:
        group = [self._waiting.popleft()]
        size, records = len(group[0].payload), group[0].records
        while self._waiting:
            size, records = size + len(self._waiting[0].payload), records + self._waiting[0].records
            if size > MAX_GROUP_BYTES or records > MAX_GROUP_RECORDS:
                break
            group.append(self._waiting.popleft())
        return group

    async def _write_group(self, group: list[_Proposal]) -> None:
        run = asyncio.get_running_loop().run_in_executor
        # Concatenated protobuf encodings decode as one message whose repeated fields are concatenated.
        payload = b"".join(proposal.payload for proposal in group)
        try:
            index = await run(self._executor, self._store.append, self._term, payload)
        except OSError as error:
            await self._refuse(group, error)
            return
        self._waiting_bytes -= len(payload)
        self._image = group[-1].image
        self.recent.add(Entry(index, self._term, payload))
        changes = Changes.joined(proposal.image.changes for proposal in group)
        for listener in self._listeners:
            asyncio.get_running_loop().call_soon(listener, self._image, changes)
        for proposal in group:
            if not proposal.done.done():
                proposal.done.set_result(index)
        if self._store.wants_snapshot:
            await self._snapshot()

    async def _refuse(self, group: list[_Proposal], error: OSError) -> None:
        self.refused += 1
        # Proposals accepted meanwhile were planned on the state that did not become durable.
        refused = [*group, *self._waiting]
        self._waiting.clear()
        self._waiting_bytes = 0
        self._proposed = self._image
        events.error(_logger, "metadata.refused", changes=len(refused), error=error)
        for proposal in refused:
            if not proposal.done.done():
                proposal.done.set_exception(
                    StorageError(f"the metadata log cannot be written ({error}); nothing was changed, retry later")
                )
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._store.repair)
        except OSError as later:
            events.warning(_logger, "metadata.torn_end_left", error=later)

    async def _snapshot(self) -> None:
        run = asyncio.get_running_loop().run_in_executor
        try:
            await run(self._executor, self._store.snapshot, self._image, self._term)
        except OSError as error:
            events.error(_logger, "metadata.snapshot_failed", error=error)
