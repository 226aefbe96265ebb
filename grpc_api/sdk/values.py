"""The SDK's values: messages, acknowledgements, start positions and options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Literal, NamedTuple

from storage_tiers.errors import InvalidConfig, InvalidRequest
from storage_tiers.records.codecs import Codec
from storage_tiers.times import first_ms, parse_time
from storage_tiers.types import TopicPartition

Header = tuple[str, bytes | None]

_BEGINNING = datetime.fromtimestamp(0, UTC)


class Message(NamedTuple):
    """A record read. `timestamp` is in milliseconds since 1970; `headers` are (name, value) pairs."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()

    @property
    def time(self) -> datetime:
        """The timestamp, in UTC. Raises OverflowError after the year 9999."""
        return _BEGINNING + timedelta(milliseconds=self.timestamp)


class Sent(NamedTuple):
    """The position of a sent record. `offset` is -1 if the node only knows that it already has the record."""

    topic: str
    partition: int
    offset: int


class GroupMemberInfo(NamedTuple):
    """A member of a consumer group, with its partitions; during a rebalance these are the ones that it had before."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: Sequence[TopicPartition]


class GroupInfo(NamedTuple):
    """A consumer group. `state` is Kafka's name, such as "Stable"; `assignor` is "" unless the group is stable."""

    name: str
    state: str
    assignor: str
    members: Sequence[GroupMemberInfo]


#: The position where a reader begins: at the first record ("earliest"), after the last one ("latest"), at the first record at
#: or after a time (a datetime with a time zone, or ISO 8601 text, UTC unless it names a zone), or at an offset for each
#: partition.
Start = str | datetime | Mapping[int, int]


class Acks(Enum):
    """The condition under which a record counts as sent: committed (on all in-sync replicas, flushed as configured), or
    appended by the leader."""

    ALL = "all"
    LEADER = "leader"


Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]

_CODECS: Mapping[str, Codec] = {codec.name.lower(): codec for codec in Codec}


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """Options of a producer. Raises InvalidConfig for an invalid option, or options that contradict each other.

    `linger_s` is the time in seconds that a record may wait for others. `batch_bytes` bounds the records of a batch,
    uncompressed; a larger record is a batch of its own. `buffer_bytes` bounds unacknowledged records; beyond it `send` waits.
    `delivery_timeout_s` is the longest time in seconds from `send` to the acknowledgement, retries included. With `idempotent`,
    a retry never appends a record twice."""

    linger_s: float = 0.005
    batch_bytes: int = 256 << 10
    buffer_bytes: int = 32 << 20
    compression: Compression = "none"
    acks: Acks = Acks.ALL
    idempotent: bool = True
    delivery_timeout_s: float = 120.0

    def __post_init__(self) -> None:
        if self.compression not in _CODECS:
            raise InvalidConfig(f"compression {self.compression!r} does not exist: {', '.join(_CODECS)}")
        if not 0 < self.batch_bytes <= self.buffer_bytes:
            raise InvalidConfig("batch_bytes must be above 0 and at most buffer_bytes")
        if self.linger_s < 0 or self.delivery_timeout_s <= self.linger_s:
            raise InvalidConfig("linger_s must not be negative, and delivery_timeout_s must be longer than linger_s")
        if self.idempotent and self.acks is not Acks.ALL:
            raise InvalidConfig("an idempotent producer waits for Acks.ALL: choose that, or idempotent=False")

    @property
    def codec(self) -> Codec:
        return _CODECS[self.compression]


class OutOfRange(Enum):
    """A reader's reaction to a position that the log does not have: raise OffsetOutOfRange, or continue at the first or after
    the last record."""

    FAIL = "fail"
    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """Options of a reader. Raises InvalidConfig if a number is out of bounds.

    `fetch_bytes` bounds the records in one message from a leader; a reader holds one or two messages of each leader. With
    `until_end`, reading stops at the ends that the partitions had when it began. With `committed_only`, aborted transactions
    are omitted, and open ones are awaited; without it, all records below the high watermark are read. `retry_s` is the time in
    seconds that a node may be unreachable before reading fails."""

    fetch_bytes: int = 1 << 20
    until_end: bool = False
    committed_only: bool = True
    out_of_range: OutOfRange = OutOfRange.FAIL
    retry_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0 < self.fetch_bytes <= 32 << 20:
            raise InvalidConfig("fetch_bytes must be above 0 and at most 32 MiB")
        if self.retry_s < 0:
            raise InvalidConfig("retry_s must not be negative")


#: The longest timeout of Kafka's protocol, an int32 of milliseconds.
MAX_TIMEOUT_S = ((1 << 31) - 1) // 1000
#: Kafka's assignors that a member of a group may offer.
ASSIGNORS = ("range", "cooperative-sticky")


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """Options of a member of a consumer group. Raises InvalidConfig for an invalid option, or options that contradict each
    other.

    `start`: where reading begins in a partition without a committed offset, or with one that the log no longer has.
    `auto_commit_s`: seconds between commits of processed records; with None, only `commit` commits.
    `assignors` are offered in this order; with "range" among them, all partitions are revoked at every rebalance.
    `instance_id` makes the member static: it keeps its partitions over a restart within `session_s`.
    `heartbeat_s`: seconds between heartbeats. `session_s`: seconds without a heartbeat after which the coordinator removes the
    member. `processing_s`: longest time in seconds between two requests for records.
    `fetch_bytes`, `committed_only` and `retry_s` are as in ReaderOptions."""

    start: Literal["earliest", "latest"] = "earliest"
    auto_commit_s: float | None = 5.0
    assignors: Sequence[str] = ASSIGNORS
    instance_id: str | None = None
    client_id: str = "tidelog"
    session_s: float = 45.0
    heartbeat_s: float = 3.0
    processing_s: float = 300.0
    fetch_bytes: int = 1 << 20
    committed_only: bool = True
    retry_s: float = 60.0

    def __post_init__(self) -> None:
        if self.start not in ("earliest", "latest"):
            raise InvalidConfig(f"a consumer starts at 'earliest' or 'latest', not at {self.start!r}")
        unknown = [each for each in self.assignors if each not in ASSIGNORS]
        if unknown or not self.assignors:
            raise InvalidConfig(f"assignors must be chosen from {', '.join(ASSIGNORS)}, not {list(self.assignors)}")
        if not 0 < self.heartbeat_s < self.session_s or self.processing_s <= 0:
            raise InvalidConfig("heartbeat_s must be above 0 and below session_s, and processing_s above 0")
        if max(self.session_s, self.processing_s) > MAX_TIMEOUT_S:
            raise InvalidConfig(f"session_s and processing_s are at most {MAX_TIMEOUT_S} s")
        if self.auto_commit_s is not None and self.auto_commit_s < 0:
            raise InvalidConfig("auto_commit_s must not be negative; None disables automatic commits")
        self.reader()

    def reader(self) -> ReaderOptions:
        """The options with which the member reads its partitions."""
        return ReaderOptions(
            fetch_bytes=self.fetch_bytes,
            committed_only=self.committed_only,
            out_of_range=OutOfRange(self.start),
            retry_s=self.retry_s,
        )


def checked_start(start: Any) -> Start:
    """The start, with ISO 8601 text parsed to a datetime. Raises InvalidRequest for an invalid start."""
    if isinstance(start, datetime | Mapping) or start in ("earliest", "latest"):
        found: Start = start
        return found
    try:
        return parse_time(start)
    except (TypeError, ValueError):
        raise InvalidRequest(
            f"{start!r} is not a start position: that is 'earliest', 'latest', a datetime, a time as "
            "'2024-01-31T12:00:00Z', or an offset for each partition"
        ) from None


def start_ms(moment: datetime) -> int:
    """The first whole millisecond since 1970 at or after the moment; 0 for a moment before 1970, because Kafka gives negative
    timestamps a special meaning. Raises InvalidConfig without a time zone: Python would assume the machine's."""
    if moment.tzinfo is None:
        raise InvalidConfig(
            f"{moment!r} has no time zone; say which, as tzinfo=timezone.utc, or write '2024-01-31T12:00:00Z'"
        )
    return max(0, first_ms(moment))
