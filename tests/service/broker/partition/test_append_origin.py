"""The checks that a partition makes of an append, by the append's origin."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpc_api.contract.log import Isolation
from grpc_api.contract.transactions import Markers, ProducerIdAndEpoch
from service.broker.partition.append_origin import AppendOrigin
from service.broker.partition.partition import Partition
from storage_tiers.errors import InvalidTransactionState, NotLeader, OutOfOrderSequence
from storage_tiers.records.batch import headers, read_header
from storage_tiers.types import TopicPartition
from tests.service.broker.partition.test_leadership import ME, OTHER, elect
from tests.service.broker.support import Running, running
from tests.storage_tiers.hot.support import batch_of

UNTIERED = {"remote.storage.enable": "false"}
PRODUCER = ProducerIdAndEpoch(7, 0)


def led(node: Running, topic: str) -> Partition:
    return node.node.broker.partitions.get(TopicPartition(topic, 0))


def log_of(partition: Partition) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(Path(partition.log.hot.directory).glob("*.log")))


async def test_a_clients_batch_is_checked_and_a_coordinators_is_not(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as node:
        await node.create("t", configs=UNTIERED)
        partition = led(node, "t")
        first, unverified = (batch_of(1, producer=(each, 0, 0), transactional=True) for each in (7, 8))
        partition.append_validated(memoryview(first), read_header(first), origin=AppendOrigin.COORDINATOR)
        with pytest.raises(InvalidTransactionState):
            partition.append_validated(memoryview(unverified), read_header(unverified))
        late = batch_of(1, producer=(7, 0, 5), transactional=True)
        with pytest.raises(OutOfOrderSequence):
            partition.append_validated(memoryview(late), read_header(late))
        assert partition.log.end_offset == 1


async def test_a_replicas_log_is_its_leaders_byte_for_byte(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as node:
        for topic in ("t", "u"):
            await node.create(topic, configs=UNTIERED)
        leader, follower = led(node, "t"), led(node, "u")
        await node.append("t", b"a")
        await elect(node, "t", OTHER)
        await elect(node, "t", ME)  # a later epoch
        for number in range(2):
            batch = batch_of(1, producer=(PRODUCER.id + number, 0, 0), transactional=True)
            leader.append_validated(memoryview(batch), read_header(batch), origin=AppendOrigin.COORDINATOR)
        leader.append_marker(Markers("x", PRODUCER, False, (leader.partition,), 0), 0)
        await elect(node, "u", OTHER)

        data = memoryview(log_of(leader))
        for position, header in headers(data):
            appended = follower.append_validated(
                data[position : position + header.size], header, origin=AppendOrigin.REPLICA
            )
            assert appended.committed is None, "the leader acknowledges the append, so no caller waits here"
        assert log_of(follower) == log_of(leader)
        assert follower.log.hot.end.epochs.entries() == leader.log.hot.end.epochs.entries()
        assert leader.state.first_unstable == 2
        assert follower.state.high_watermark == 0, "the leader's fetch answers raise it"
        assert follower.state.first_unstable == 1, "the marker is not committed here"
        assert leader.readable_end(Isolation.READ_COMMITTED) == 2
        plain = batch_of(1)
        with pytest.raises(NotLeader):
            follower.append(memoryview(plain))


async def test_a_replicas_batch_continues_a_log_that_this_node_follows(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as node:
        await node.create("t", configs=UNTIERED)
        partition, batch = led(node, "t"), batch_of(1)
        header = read_header(batch)
        with pytest.raises(ValueError, match="where the log ends at 0"):
            partition.append_validated(memoryview(batch), header, origin=AppendOrigin.REPLICA)
        await elect(node, "t", OTHER)
        with pytest.raises(ValueError, match="of offset 5"):
            partition.append_validated(memoryview(batch), header._replace(base_offset=5), origin=AppendOrigin.REPLICA)
        assert partition.log.end_offset == 0
