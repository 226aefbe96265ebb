"""The interfaces that the coordinators' runtime uses: the shards that it runs, and the logs that store them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any, NamedTuple, Protocol

from grpc_api.contract.caller import Caller
from grpc_api.contract.log import Appended
from service.coordination.outcome import Outcome
from storage_tiers.errors import LogError
from storage_tiers.records.codecs import Codec


class Shard(Protocol):
    """The state of one partition; see `groups/shard.py`. `written` counts the records that the shard has loaded or passed to
    the runtime, and the markers between them."""

    written: int

    def bound(self, max_batch_bytes: int) -> None:
        """Limits all later decisions to records that fit a batch of this size."""

    def handle(self, event: Any, caller: Caller, waiter: object, now_ms: int) -> Outcome: ...
    def may_write(self, event: Any) -> bool: ...
    def next_deadline_ms(self) -> int | None: ...
    def tick(self, now_ms: int) -> Outcome: ...
    def committed(self, written: int) -> None: ...
    def end_transaction(self, producer_id: int, *, commit: bool) -> None: ...
    def load(
        self, key: bytes, value: bytes | None, now_ms: int, *, is_committed: bool, producer_id: int, written_ms: int
    ) -> None: ...
    def loaded(self, now_ms: int) -> Generator[None, None, Outcome]: ...


class WriteSettings(NamedTuple):
    """The settings with which a log is written: the codec of its batches, and the time in ms for which an answer waits until
    its records are committed (None: no bound)."""

    codec: Codec = Codec.NONE
    timeout_ms: int | None = None


PLAIN = WriteSettings()


class CoordinatorLog(Protocol):
    """The partition that stores a shard, led by this node."""

    @property
    def writing(self) -> WriteSettings: ...

    @property
    def max_batch_bytes(self) -> int:
        """Most bytes of a batch."""

    @property
    def no_room(self) -> LogError | None:
        """The error for every request that may write, raised before the shard sees the request. None if there is room."""

    @property
    def high_watermark(self) -> int:
        """The offset below which everything is committed."""

    def append(self, batch: bytes) -> Appended:
        """Appends a batch. Raises LogError if nothing was written."""

    def check_transaction(self, producer_id: int, epoch: int) -> None:
        """Raises InvalidProducerEpoch or InvalidTransactionState if the producer may not write in its transaction now."""

    def read(self, before_wait: Callable[[], None]) -> AsyncIterator[bytes]:
        """The whole log, in pieces of whole batches. If the log accepts no more records, the pieces end at the high watermark,
        because records above that may never be committed. `before_wait` is called before each wait for the store. Raises
        LogError if the log cannot be read."""

    def until_committed(self, end: int) -> asyncio.Future[None] | None:
        """A future that is done once everything below `end` is committed, or fails with a LogError if it might never be
        committed. None if it is committed already. Raises LogError if the log takes no more records."""
