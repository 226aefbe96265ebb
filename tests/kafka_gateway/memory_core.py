"""The core's contract over plain files in one temporary directory: no recovery, no replicas, no tiers.

It can serve real clients; `tests/conformance/test_contract.py` holds it to the contract, without the node's additions.
"""

from __future__ import annotations

import asyncio
import bisect
import os
import struct
import tempfile
from array import array
from collections.abc import Callable, Mapping, Sequence

import crc32c

from grpc_api.contract.cold import ColdManifest, ColdRepair, ColdSegment
from grpc_api.contract.log import (
    Append,
    Appended,
    Fetch,
    Fetched,
    FetchPartition,
    OffsetQuery,
    OffsetSpec,
    SealedPartition,
)
from grpc_api.contract.ready import Ready
from grpc_api.contract.topics import (
    AlterOp,
    BrokerDescription,
    ClusterDescription,
    ConfigAlteration,
    ConfigEntry,
    ConfigKind,
    ConfigSource,
    ConfigSynonym,
    CreatedTopic,
    Endpoint,
    NewTopic,
    PartitionDescription,
    Resource,
    ResourceKind,
    TopicDescription,
)
from grpc_api.contract.transactions import ProducerTransaction
from service.broker.api.group_service import GroupService
from service.broker.api.transaction_service import TransactionService
from service.coordination.turn_writes import TurnWrites
from storage_tiers.errors import (
    BrokerNotRegistered,
    CorruptRecord,
    InvalidConfig,
    InvalidPartitions,
    InvalidRecord,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    LogError,
    NoReassignmentInProgress,
    OffsetOutOfRange,
    TopicExists,
    UnknownLeaderEpoch,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from storage_tiers.types import FileSlice, SharedFile, TimestampOffset, TopicId, TopicPartition
from tests.kafka_gateway.memory_features import MemoryFeatures
from tests.kafka_gateway.memory_groups import MemoryTopics, memory_groups
from tests.kafka_gateway.memory_node import MemoryNode
from tests.kafka_gateway.memory_transactions import memory_transactions

EPOCH = 0
DEFAULT_CONFIGS = {"cleanup.policy": "delete", "retention.ms": "604800000"}
_BASE = struct.Struct(">q")
_MAXIMUM = struct.Struct(">q")


class MemoryPartition:
    """One file of batches, with the base offset, position and maximum timestamp of each."""

    def __init__(self, path: str) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        self.file = SharedFile(path, fd)
        self.next_offset = 0
        self.log_start = 0
        self.size = 0
        self.bases = array("q")
        self.positions = array("q")
        self.maxima = array("q")
        self.committed: asyncio.Future[None] | None = None
        self.waiters: list[asyncio.Future[None]] = []

    def append(self, batch: memoryview) -> Appended:
        if len(batch) < 61 or int.from_bytes(batch[8:12], "big") != len(batch) - 12:
            raise InvalidRecord("exactly one batch")
        if crc32c.crc32c(batch[21:]) != int.from_bytes(batch[17:21], "big"):
            raise CorruptRecord("CRC")
        base = self.next_offset
        os.writev(self.file.fd, (_BASE.pack(base), batch[8:12], b"\0\0\0\0", batch[16:]))
        self.bases.append(base)
        self.positions.append(self.size)
        self.maxima.append(_MAXIMUM.unpack_from(batch, 35)[0])
        self.next_offset += int.from_bytes(batch[23:27], "big") + 1
        self.size += len(batch)
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.waiters.clear()
        return Appended(base, EPOCH, -1, self.log_start, self.committed)

    def position(self, offset: int) -> int:
        place = bisect.bisect_right(self.bases, offset) - 1
        return self.positions[place] if place >= 0 else 0

    def batch_end(self, position: int) -> int:
        """The byte position at which the batch at `position` ends; the file's size after the last one."""
        place = bisect.bisect_right(self.positions, position)
        return self.positions[place] if place < len(self.positions) else self.size

    def first_with_time(self, timestamp: int) -> TimestampOffset | None:
        """Looks up whole batches, each represented by its first record: enough for batches of one record."""
        found = zip(self.bases, self.maxima, strict=True)
        return next((TimestampOffset(m, b, EPOCH) for b, m in found if m >= timestamp and b >= self.log_start), None)


class MemoryCore:
    """Implements log, topics and configs in one class: the contract's three parts do not overlap."""

    def __init__(self, directory: str | None = None) -> None:
        self._holder = None if directory else tempfile.TemporaryDirectory(prefix="memory-core-")
        self.directory = directory or (self._holder.name if self._holder else "")
        self.port = 0
        self.further_endpoints: Sequence[Endpoint] = ()
        self.auto_create_allowed = True
        self.partitions: dict[TopicPartition, MemoryPartition] = {}
        self.ids: dict[str, TopicId] = {}
        self.names: dict[TopicId, str] = {}
        self.configs_of: dict[str, dict[str, str]] = {}
        self.next_producer_id = 0
        self._groups: GroupService | None = None
        self._transactions: TransactionService | None = None
        self.features = MemoryFeatures()
        self.turns = TurnWrites()
        self._listeners: list[Callable[[], None]] = []
        self.fail_appends_with: Exception | None = None
        self.hold_appends = False
        self._held: list[tuple[asyncio.Future[Sequence[Appended | LogError]], Sequence[Appended | LogError]]] = []

    @property
    def log(self) -> MemoryCore:
        return self

    @property
    def topics(self) -> MemoryCore:
        return self

    @property
    def configs(self) -> MemoryCore:
        return self

    @property
    def node(self) -> MemoryNode:
        return MemoryNode(self.directory, {name: known.size for name, known in self.partitions.items()})

    @property
    def cold(self) -> MemoryCore:
        return self

    @property
    def groups(self) -> GroupService:
        if self._groups is None:
            self._groups = memory_groups(MemoryTopics(self.partitions, self.ids), self.turns)
        return self._groups

    @property
    def transactions(self) -> TransactionService:
        if self._transactions is None:
            self._transactions = memory_transactions(MemoryTopics(self.partitions, self.ids), self.turns)
        return self._transactions

    async def manifests(self, topic: str) -> Sequence[ColdManifest | LogError]:
        raise InvalidRequest("nothing is tiered here")

    async def segments(self, partition: TopicPartition, start_offset: int) -> Sequence[ColdSegment]:
        raise InvalidRequest("nothing is tiered here")

    async def repair(self, partition: TopicPartition, *, apply: bool, accept_loss: object = ()) -> ColdRepair:
        raise InvalidRequest("nothing is tiered here")

    async def repair_topic(self, topic: str, *, apply: bool) -> ColdRepair:
        raise InvalidRequest("nothing is tiered here")

    async def repair_cluster(self, *, apply: bool) -> ColdRepair:
        raise InvalidRequest("nothing is tiered here")

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _changed(self) -> None:
        for listener in list(self._listeners):
            listener()

    def close(self) -> None:
        """Asserts that every other user has released the files, and releases them."""
        for partition in self.partitions.values():
            assert partition.file.users == 1, f"{partition.file.path} is still held {partition.file.users - 1} times"
            partition.file.release()
        self.partitions.clear()

    # --- log ----------------------------------------------------------------------------------------------------------
    def partition(self, partition: TopicPartition) -> MemoryPartition:
        found = self.partitions.get(partition)
        if found is None:
            raise UnknownTopicOrPartition(f"{partition} does not exist")
        return found

    def append(
        self, appends: Sequence[Append], *, transaction: ProducerTransaction | None = None
    ) -> Ready[Sequence[Appended | LogError]]:
        if self.fail_appends_with is not None:
            raise self.fail_appends_with
        answers: list[Appended | LogError] = []
        for wanted in appends:
            try:
                answers.append(self.partition(wanted.partition).append(wanted.batch))
            except LogError as error:
                answers.append(error)
        if self.hold_appends:
            future: asyncio.Future[Sequence[Appended | LogError]] = asyncio.get_running_loop().create_future()
            self._held.append((future, answers))
            return future
        return answers

    def release_appends(self) -> None:
        self.hold_appends = False
        for future, answers in self._held:
            future.set_result(answers)
        self._held.clear()

    def fetch(self, fetch: Fetch) -> Ready[Sequence[Fetched]]:
        answers = self._read_all(fetch)
        enough = sum(answer.size for answer in answers) >= fetch.min_bytes or any(a.error for a in answers)
        if enough or fetch.max_wait_ms <= 0:
            return answers
        for answer in answers:
            answer.release_all()
        return asyncio.ensure_future(self._fetch_later(fetch))

    async def _fetch_later(self, fetch: Fetch) -> Sequence[Fetched]:
        loop = asyncio.get_running_loop()
        end = loop.time() + fetch.max_wait_ms / 1000
        while True:
            waiter: asyncio.Future[None] = loop.create_future()
            for wanted in fetch.partitions:
                self.partition(wanted.partition).waiters.append(waiter)
            answers = self._read_all(fetch)
            if sum(answer.size for answer in answers) >= fetch.min_bytes or loop.time() >= end:
                return answers
            for answer in answers:
                answer.release_all()
            try:
                await asyncio.wait([waiter], timeout=max(0.0, end - loop.time()))
            finally:
                waiter.cancel()

    def _read_all(self, fetch: Fetch) -> list[Fetched]:
        answers: list[Fetched] = []
        left = fetch.max_bytes
        for wanted in fetch.partitions:
            answers.append(self._read(wanted, left, at_least_one=left == fetch.max_bytes))
            left -= answers[-1].size
        return answers

    def _read(self, wanted: FetchPartition, left: int, *, at_least_one: bool) -> Fetched:
        try:
            log = self.partition(wanted.partition)
            check_epoch(wanted.current_leader_epoch)
            if not log.log_start <= wanted.offset <= log.next_offset:
                raise OffsetOutOfRange(f"{wanted.offset} is not in [{log.log_start}, {log.next_offset}]")
        except LogError as error:
            return Fetched(error)
        at = log.position(wanted.offset) if wanted.offset < log.next_offset else log.size
        length = max(0, min(wanted.max_bytes, left, log.size - at))
        if at_least_one:
            length = max(length, log.batch_end(at) - at)
        slices = (FileSlice(log.file.acquire(), at, length),) if length > 0 else ()
        return Fetched(None, log.next_offset, log.next_offset, log.log_start, slices)

    async def list_offsets(self, queries: Sequence[OffsetQuery]) -> Sequence[TimestampOffset | LogError | None]:
        answers: list[TimestampOffset | LogError | None] = []
        for query in queries:
            log = self.partitions.get(query.partition)
            if log is None:
                answers.append(UnknownTopicOrPartition(f"{query.partition} does not exist"))
            elif query.timestamp == OffsetSpec.LATEST:
                answers.append(TimestampOffset(-1, log.next_offset, EPOCH))
            elif query.timestamp in (OffsetSpec.EARLIEST, OffsetSpec.EARLIEST_LOCAL):
                answers.append(TimestampOffset(-1, log.log_start, EPOCH))
            elif query.timestamp in (OffsetSpec.LATEST_TIERED, OffsetSpec.EARLIEST_PENDING_UPLOAD):
                answers.append(TimestampOffset(-1, -1, -1))
            elif query.timestamp == OffsetSpec.MAX_TIMESTAMP:
                answers.append(log.first_with_time(max(log.maxima, default=1 << 62)))
            else:
                answers.append(log.first_with_time(query.timestamp))
        return answers

    async def delete_records(self, partition: TopicPartition, before_offset: int) -> int:
        log = self.partition(partition)
        target = log.next_offset if before_offset == -1 else before_offset
        if not 0 <= target <= log.next_offset:
            raise OffsetOutOfRange(f"{target} is above {log.next_offset}")
        log.log_start = max(log.log_start, target)
        return log.log_start

    async def epoch_end_offset(
        self, partition: TopicPartition, leader_epoch: int, current_leader_epoch: int = -1
    ) -> tuple[int, int]:
        log = self.partition(partition)
        check_epoch(current_leader_epoch)
        return (EPOCH, log.next_offset) if leader_epoch >= EPOCH else (-1, -1)

    def topic_name(self, topic_id: TopicId) -> str | None:
        return self.names.get(topic_id)

    async def init_producer_id(self) -> tuple[int, int]:
        self.next_producer_id += 1
        return self.next_producer_id, 0

    async def seal(self, topic: str, *, wait: bool, timeout_ms: int) -> Sequence[SealedPartition]:
        raise InvalidRequest("nothing is tiered here")

    # --- topics -------------------------------------------------------------------------------------------------------
    def cluster(self) -> ClusterDescription:
        here = Endpoint("PLAINTEXT", "127.0.0.1", self.port)
        broker = BrokerDescription(1, (here, *self.further_endpoints))
        return ClusterDescription("memory-core-cluster-id", 1, (broker,))

    def describe(
        self, names: Sequence[str] | None = None, topic_ids: Sequence[TopicId] = ()
    ) -> Sequence[TopicDescription | LogError]:
        if names is None and not topic_ids:
            return [self._describe(name) for name in self.ids]
        found = [self._describe(name) for name in names or ()]
        for topic_id in topic_ids:
            known = self.names.get(topic_id)
            found.append(self._describe(known) if known else UnknownTopicId(f"{topic_id} does not exist"))
        return found

    def _describe(self, name: str) -> TopicDescription | LogError:
        if not _is_name(name):
            return InvalidTopic(f"{name!r} is not a topic name")
        if name not in self.ids:
            return UnknownTopicOrPartition(f"topic {name} does not exist")
        rows = [PartitionDescription(p.partition, 1, EPOCH, (1,), (1,)) for p in self.partitions if p.topic == name]
        return TopicDescription(name, self.ids[name], rows)

    def leader(self, partition: TopicPartition) -> tuple[int, int]:
        return (1, EPOCH) if partition in self.partitions else (-1, -1)

    async def create(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> Sequence[CreatedTopic | LogError]:
        answers: list[CreatedTopic | LogError] = []
        for topic in topics:
            try:
                answers.append(self._create(topic, validate_only))
            except LogError as error:
                answers.append(error)
        return answers

    def _create(self, topic: NewTopic, validate_only: bool) -> CreatedTopic:
        if not _is_name(topic.name):
            raise InvalidTopic(f"{topic.name!r} is not a topic name")
        if topic.name in self.ids:
            raise TopicExists(f"topic {topic.name} exists")
        count = len(topic.assignments) or (1 if topic.partitions == -1 else topic.partitions)
        if count <= 0:
            raise InvalidPartitions(f"{count} partitions")
        if topic.replication_factor not in (-1, 1):
            raise InvalidReplicationFactor("one broker")
        check_configs(topic.configs)
        topic_id = TopicId(os.urandom(16))
        if not validate_only:
            self.ids[topic.name], self.names[topic_id] = topic_id, topic.name
            self.configs_of[topic.name] = {k: v for k, v in topic.configs.items() if v is not None}
            self._add_partitions(topic.name, 0, count)
            self._changed()
        return CreatedTopic(topic.name, topic_id, count, 1, self._entries(topic.configs))

    def _add_partitions(self, name: str, have: int, count: int) -> None:
        for index in range(have, count):
            file = MemoryPartition(f"{self.directory}/{name}-{index}-{os.urandom(4).hex()}.log")
            self.partitions[TopicPartition(name, index)] = file

    async def auto_create(self, names: Sequence[str]) -> None:
        if self.auto_create_allowed:
            await self.create([NewTopic(name) for name in names])

    async def delete(
        self, names: Sequence[str], topic_ids: Sequence[TopicId] = ()
    ) -> Sequence[tuple[str, TopicId] | LogError]:
        answers: list[tuple[str, TopicId] | LogError] = []
        for name in [*names, *(self.names.get(i) or UnknownTopicId(f"{i} does not exist") for i in topic_ids)]:
            if isinstance(name, LogError):
                answers.append(name)
            elif name not in self.ids:
                answers.append(UnknownTopicOrPartition(f"topic {name} does not exist"))
            else:
                answers.append((name, topic_id := self.ids.pop(name)))
                del self.names[topic_id]
                for partition in [p for p in self.partitions if p.topic == name]:
                    self.partitions.pop(partition).file.release()
                self._changed()
        return answers

    async def create_partitions(
        self, topic: str, count: int, assignments: Sequence[Sequence[int]] | None, *, validate_only: bool = False
    ) -> None:
        self.partition(TopicPartition(topic, 0))
        if count <= (have := sum(1 for p in self.partitions if p.topic == topic)):
            raise InvalidPartitions(f"{topic} has {have} partitions already")
        if not validate_only:
            self._add_partitions(topic, have, count)
            self._changed()

    async def elect_unclean(self, partition: TopicPartition) -> None:
        self.partition(partition)

    async def reassign(self, partition: TopicPartition, replicas: Sequence[int] | None) -> None:
        self.partition(partition)
        raise NoReassignmentInProgress(f"{partition} stays on the only node")

    async def unregister_broker(self, broker_id: int) -> None:
        running = InvalidRequest("Broker ID 1 is a running broker of this cluster; stop it first")
        raise running if broker_id == 1 else BrokerNotRegistered(f"Broker ID {broker_id} is not currently registered")

    # --- configs ------------------------------------------------------------------------------------------------------
    def _entries(self, overrides: object) -> list[ConfigEntry]:
        own = overrides if isinstance(overrides, dict) else {}
        return [
            ConfigEntry(
                name,
                own.get(name, default),
                ConfigSource.DYNAMIC_TOPIC if name in own else ConfigSource.DEFAULT,
                ConfigKind.STRING,
                synonyms=(ConfigSynonym(name, default, ConfigSource.DEFAULT),),
                documentation=f"what {name} does",
            )
            for name, default in DEFAULT_CONFIGS.items()
        ]

    async def describe_configs(self, resource: Resource, keys: Sequence[str] | None = None) -> Sequence[ConfigEntry]:
        self._check(resource)
        entries = self._entries(self.configs_of.get(resource.name, {}))
        return [entry for entry in entries if keys is None or entry.name in keys]

    async def alter_configs(
        self,
        resource: Resource,
        alterations: Sequence[ConfigAlteration],
        *,
        validate_only: bool = False,
        replace: bool = False,
    ) -> None:
        self._check(resource)
        check_configs({change.name: change.value for change in alterations})
        if replace and not validate_only:
            self.configs_of.pop(resource.name, None)
        for change in [] if validate_only else alterations:
            own = self.configs_of.setdefault(resource.name, {})
            if change.op == AlterOp.SET and change.value is not None:
                own[change.name] = change.value
            else:
                own.pop(change.name, None)

    def _check(self, resource: Resource) -> None:
        if resource.kind == ResourceKind.TOPIC and resource.name not in self.ids:
            raise UnknownTopicOrPartition(f"topic {resource.name} does not exist")
        if resource.kind not in (ResourceKind.TOPIC, ResourceKind.BROKER):
            raise InvalidRequest(f"{resource.kind!r} has no configs here")


def check_epoch(asked: int) -> None:
    if asked > EPOCH:
        raise UnknownLeaderEpoch(f"{asked} is above {EPOCH}")


def check_configs(configs: Mapping[str, str | None]) -> None:
    for name, value in configs.items():
        if name not in DEFAULT_CONFIGS:
            raise InvalidConfig(f"unknown config {name}")
        if name == "retention.ms" and value is not None and not value.lstrip("-").isdigit():
            raise InvalidConfig(f"{value} is no number")


def _is_name(name: str) -> bool:
    return 0 < len(name) <= 249 and name not in (".", "..") and all(c.isalnum() or c in "._-" for c in name)
