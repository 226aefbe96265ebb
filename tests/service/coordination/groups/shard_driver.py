"""Drives a group shard by hand, with its log: time is a number, and records may be held back or read again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grpc_api.contract.groups import (
    FetchedOffset,
    Joined,
    JoinGroup,
    ListGroups,
    MemberProtocol,
    OffsetCommit,
    OffsetFetch,
    PartitionCommit,
    SyncGroup,
    TopicCommit,
    TopicPartitionIndexes,
    TxnOffsetCommit,
)
from grpc_api.contract.transactions import ProducerTransaction
from service.coordination.counts import GroupCounts
from service.coordination.groups.group_offsets import OffsetSettings
from service.coordination.groups.rebalancing import GroupSettings
from service.coordination.groups.shard import GroupEvent, GroupShard
from service.coordination.outcome import CoordinatorRecord, Outcome
from storage_tiers.errors import LogError
from tests.service.coordination.groups.driver import CALLER
from tests.service.coordination.whole_values import finish
from tests.support.clock import SeededRng

MINUTE = 60_000
SUBSCRIPTION = bytes.fromhex("0001 00000001 0001 74 ffffffff")  # subscribes to topic "t"
RANGE = (MemberProtocol("range", SUBSCRIPTION),)
Logged = tuple[CoordinatorRecord, int] | tuple[None, int, bool]


def expired(shard: GroupShard, group_id: str, now_ms: int) -> Outcome:
    """Takes all steps of a group's expiry at once."""
    outcome, shares = Outcome(), shard.offset_shares(group_id)
    for some in shares:
        outcome.add(shard.expire(group_id, some, now_ms, is_last=some is shares[-1]))
    return outcome


class Broker:
    """A shard with its log. Records are committed at once unless `held`."""

    def __init__(self, counts: GroupCounts | None = None) -> None:
        self.now = 1_000_000
        self.counts = counts
        self.log: list[Logged] = []
        self.held = False
        self.answers: dict[object, Any] = {}
        self.shard = self.new_shard()

    def new_shard(self) -> GroupShard:
        return GroupShard(
            SeededRng(1),
            GroupSettings(initial_rebalance_delay_ms=0),
            OffsetSettings(retention_ms=10 * MINUTE),
            counts=self.counts,
        )

    def ask(self, event: GroupEvent) -> Any:
        """The answer, or None if it comes later."""
        waiter = object()
        outcome = self.shard.handle(event, CALLER, waiter, self.now)
        self.keep(outcome, event.producer_id if isinstance(event, TxnOffsetCommit) else -1)
        return self.answers.pop(waiter, None)

    def keep(self, outcome: Outcome, producer_id: int = -1) -> None:
        self.log += [(record, producer_id) for record in outcome.records]
        if not self.held:
            self.shard.committed(self.shard.written)
        for waiter, answer in outcome.answers:
            self.answers[waiter] = answer

    def marker(self, producer_id: int, *, commit: bool) -> None:
        self.log.append((None, producer_id, commit))
        self.shard.end_transaction(producer_id, commit=commit)
        self.shard.committed(self.shard.written)

    def restart(self) -> None:
        self.shard = self.new_shard()
        for entry in self.log:
            if entry[0] is None:
                self.shard.end_transaction(entry[1], commit=entry[2])
            else:
                self.shard.load(entry[0].key, entry[0].value, self.now, producer_id=entry[1])
        self.shard.committed(self.shard.written)
        self.keep(finish(self.shard.loaded(self.now)))

    # --- requests -----------------------------------------------------------------------------------------------------
    def commit(
        self, offset: int, *, partition: int = 0, group: str = "g", metadata: str = "", **how: Any
    ) -> type[LogError] | None:
        topics = [TopicCommit("t", [PartitionCommit(partition, offset, 3, metadata)])]
        request = OffsetCommit(*(group, how.get("generation", -1), how.get("member", ""), how.get("instance"), topics))
        error = self.ask(request._replace(retention_ms=how.get("retention", -1))).topics[0].partitions[0].error
        return None if error is None else type(error)

    def commit_in_transaction(self, offset: int, producer_id: int = 7, **how: Any) -> type[LogError] | None:
        topics = [TopicCommit("t", [PartitionCommit(0, offset)])]
        request = TxnOffsetCommit(
            "g",
            ProducerTransaction("copier"),
            producer_id,
            0,
            how.get("generation", -1),
            how.get("member", ""),
            None,
            topics,
        )
        error = self.ask(request).topics[0].partitions[0].error
        return None if error is None else type(error)

    def fetch(self, *, partition: int = 0, group: str = "g", stable: bool = False) -> FetchedOffset:
        wanted = [TopicPartitionIndexes("t", [partition])]
        return finish(self.shard.fetch_offsets(OffsetFetch(group, wanted, stable))).topics[0].partitions[0]

    def join(self, protocols: Sequence[MemberProtocol] = RANGE, protocol_type: str = "consumer") -> Joined:
        waiter = object()
        request = JoinGroup("g", "", None, protocol_type, protocols, 30_000, 60_000, needs_member_id=False)
        self.keep(self.shard.handle(request, CALLER, waiter, self.now))
        self.keep(self.shard.tick(self.now))
        answer = self.answers.pop(waiter)
        assert isinstance(answer, Joined)
        return answer

    def member(self, protocols: Sequence[MemberProtocol] = RANGE, protocol_type: str = "consumer") -> Joined:
        """The only member of a stable group."""
        joined = self.join(protocols, protocol_type)
        assert self.ask(SyncGroup("g", 1, joined.member_id, None, [(joined.member_id, b"all")])).error is None
        return joined

    def listed(self) -> list[str]:
        return [each.group for share in self.shard.list(ListGroups()) for each in share]
