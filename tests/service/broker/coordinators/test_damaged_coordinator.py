"""A coordinator's partition that holds a damaged record: requests to it fail with the reason, and no other partition is
affected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpc_api.contract.coordinator_errors import NotCoordinator
from grpc_api.contract.groups import ListGroups, OffsetFetch
from grpc_api.contract.transactions import ListTransactions
from service.broker.partition.append_origin import AppendOrigin
from service.coordination.coordinator_runtime import partition_of
from service.coordination.shard_state import ShardState
from storage_tiers.records.batch import read_header
from storage_tiers.records.builder import NewRecord, build_batch
from storage_tiers.types import TopicPartition
from tests.service.broker.coordinators.test_groups import CALLER, SETTINGS, commit, coordinated, groups_of, offsets
from tests.service.broker.coordinators.transactional import Client
from tests.service.broker.support import Running, running, until

BOTH = {**SETTINGS, "transaction.state.log.num.partitions": "2"}
#: Keys of a group and of a transactional id, and a value that neither can have.
GROUP_KEY, TRANSACTION_KEY, UNREADABLE = b"\0\2\0\1g", b"\0\0\0\1g", b"\0\3"


def damage(node: Running, topic: str, key: bytes) -> None:
    partition = node.node.broker.partitions.get(TopicPartition(topic, partition_of("g", 2)))
    batch = build_batch([NewRecord(key, UNREADABLE)])
    partition.append_validated(memoryview(batch), read_header(batch), origin=AppendOrigin.COORDINATOR)


async def test_a_damaged_record_affects_no_other_partition(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    damaged = partition_of("g", 2)
    other = next(name for name in "abcdef" if partition_of(name, 2) != damaged)
    async with running(tmp_path / "data", broker=BOTH) as node:
        await node.create("t")
        await commit(await coordinated(node, "g"), 1)
        await commit(await coordinated(node, other), 2, group=other)
        await Client(node, "g").begin()
        await Client(node, other).begin()
        damage(node, "__consumer_offsets", GROUP_KEY)
        damage(node, "__transaction_state", TRANSACTION_KEY)
    async with running(tmp_path / "data", broker=BOTH) as node:
        shards = node.node.broker.coordinators.shards
        for runtime in (shards.groups, shards.transactions):
            states = {damaged: ShardState.UNREADABLE, 1 - damaged: ShardState.ACTIVE}
            await until(lambda: {number: host.state for number, host in runtime.hosts.items()} == states)  # noqa: B023
        said = json.loads(node.node.ground.readiness.body())
        reasons = said["unreadable_coordinators"]
        assert set(reasons) == {f"__consumer_offsets-{damaged}", f"__transaction_state-{damaged}"}
        assert "a field of 2 bytes at 2 does not fit" in reasons[f"__consumer_offsets-{damaged}"]
        assert "its version is 3" in reasons[f"__transaction_state-{damaged}"]
        groups, transactions = groups_of(node), node.node.broker.core.transactions
        with pytest.raises(NotCoordinator, match="cannot be loaded"):
            await groups.fetch_offsets(OffsetFetch("g", None), CALLER)
        with pytest.raises(NotCoordinator, match="cannot be loaded"):
            await transactions.describe("g", CALLER)
        assert offsets(await groups.fetch_offsets(OffsetFetch(other, None), CALLER)) == {"t": [2]}
        await commit(groups, 3, group=other)
        listed = await groups.list_groups(ListGroups(), CALLER)
        assert (listed.error, [each.group for each in listed.groups]) == (None, [other])
        found = await transactions.list(ListTransactions(), CALLER)
        assert (found.error, [each.transactional_id for each in found.transactions]) == (None, [other])
    assert caplog.text.count("coordinator.unreadable") == 2
