"""Measures what many groups, large groups and many committed offsets cost a broker.

Offsets are committed without membership in a group (generation -1), as tools do. The commits begin once the coordinators of all
partitions are loaded. Before that, there is no other group traffic than the warm-up. A start is timed from the spawn after a
kill -9 until an OffsetFetch has returned an offset for each of the 1,000 groups. Memory is that of the broker's process alone:
its tier process and its cleaner process start when they have work, which does not depend on groups. A group rebalances only
while its own broker is measured, so that its members do not use the cores while another broker is measured.

python -m benchmarks.coordinators HOST:PORT GROUP MEMBERS     rebalances a group until its input closes; prints `up` once the
                                                              group is stable
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from kio.schema.offset_commit.v7 import request as commit_request
from kio.schema.offset_commit.v7 import response as commit_response
from kio.schema.offset_fetch.v5 import request as fetch_request
from kio.schema.offset_fetch.v5 import response as fetch_response
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32, i64

from benchmarks import burner, groups, load, stalls
from benchmarks.brokers import Broker, Tidelog, wait_for_port
from benchmarks.burner import Burn, Used
from benchmarks.load import Connection, LoadFailed
from benchmarks.table import JUDGED, Table
from service.coordination.coordinator_runtime import partition_of

#: Number of groups, and of partitions of each: a million offsets.
OFFSETS = (1_000, 1_000)
GROUPS = (2_000, 10)
MEMBERS = 2_000
#: Seconds between two heartbeats of a member. With a shorter pause the heartbeats of 2,000 members would be the main load.
BEAT_S = 1.0
RATE, LATENCY_S = 500, 10.0
LIMIT_S = 120.0
#: Brokers' settings for this part. By default neither broker limits the number of connections of one address.
SETTINGS: dict[str, str | int | bool] = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 50}
#: Settings for the rows of `fresh`, where groups wait for members as they do by default.
FRESH_SETTINGS: dict[str, str | int | bool] = {"offsets.topic.num.partitions": 50}
DELAY_S = 3.0
#: (members, number of delays). A member that joins while a new group waits makes the group wait for one more delay.
DELAYED = ((1, 1), (100, 2))
#: The topic that `stalls.Probe` writes to.
PROBED = "small"

_COMMITTED = commit_response.OffsetCommitResponse

LEAVE = "group of 2,000 members of which one leaves: until the others are stable"
P99 = "produce p99 while a group of 2,000 rebalances"
STALL = "a group of 2,000 rebalances: most processor time in a stall"
MILLION = "1,000,000 committed offsets"
MANY = "2,000 groups of 10 partitions"


def one_round(broker: Broker, tag: str, table: Table) -> Iterator[tuple[str, str, float | None]]:
    """Yields (row, unit, value) for a running broker."""
    address = broker.address
    members = [groups.Member(address, f"large-{tag}") for _ in range(MEMBERS)]
    groups.wait_for_coordinator(members[0].connection, members[0].group)
    groups.until_stable(members, beat_s=BEAT_S)
    began = time.perf_counter()
    groups.leave(members[0].connection, members[0].group, [members.pop()])
    groups.until_stable(members, beat_s=BEAT_S, joining=0)
    yield LEAVE, "s", time.perf_counter() - began
    groups.leave(members[0].connection, members[0].group, members)
    for member in members:
        member.connection.close()
    yield P99, "ms", _beside(broker, tag, table)
    if isinstance(broker, Tidelog):
        table.add(JUDGED, STALL, "ms", _stall(broker, f"stall-{tag}"))


def _beside(broker: Broker, tag: str, table: Table) -> float:
    """Returns the p99 in ms of a produce while a group rebalances. For tidelog it also adds two figures to the table: p99
    without the group, and p99 while another process uses as much processor time as the group's members did, in equally long
    bursts."""
    with load.topic_for(broker.address, f"beside-{tag}") as topic:

        def p99() -> float:
            return load.latency(broker.address, topic, RATE, LATENCY_S)["p99"]

        idle = p99()
        with rebalancing(broker.address, f"churn-{tag}") as clients:
            began, before = time.monotonic(), Used.by(clients)
            beside = p99()
            burn = Burn.between(before, Used.by(clients), time.monotonic() - began)
        if isinstance(broker, Tidelog):
            with burner.burning([burn]):
                table.add("burners", P99, "ms", p99())
            table.add("idle", P99, "ms", idle)
    return beside


def _stall(broker: Tidelog, group: str) -> float:
    """The most processor time, in ms, that the node's loop used during any one small request while the group rebalanced for
    LATENCY_S."""
    if not isinstance(broker.pid, int):
        raise LoadFailed("the node does not run")
    _have_probed(broker.address)
    with rebalancing(broker.address, group), stalls.Probe(broker.address, broker.pid) as probe:
        time.sleep(LATENCY_S)
        return probe.result()[1]


def warm(address: str, tag: str) -> Iterator[tuple[str, str, float | None]]:
    """Makes unmeasured commits: ten offsets for each of 500 groups, per call. Yields nothing."""
    load.create_topic(address, f"warm-{tag}", 10)
    wait_for_coordinators(address)
    commit_all(address, f"warm-{tag}", 500, f"warm-{tag}", 10)
    yield from ()


def fresh(broker: Broker, tag: str, table: Table) -> Iterator[tuple[str, str, float | None]]:
    """Yields the rows about joins with the default delay and about committed offsets. The broker must run, and have no groups
    other than those of `warm`. It is killed and started again."""
    address = broker.address
    wait_for_coordinators(address)
    for count, delays in DELAYED:
        row = f"join to stable with the default delay, {count} member{'s' if count > 1 else ''}"
        yield row, "s", groups.join_to_stable(address, f"delayed-{tag}-{count}", count)
        if isinstance(broker, Tidelog):
            table.add("delay + 100 ms", row, "s", delays * DELAY_S + 0.1)
    for row, (count, partitions) in ((MANY, GROUPS), (MILLION, OFFSETS)):
        topic = f"of-{partitions}"
        load.create_topic(address, topic, partitions)
        before = broker.resident_megabytes(children=False)
        commit_all(address, f"many-{partitions}", count, topic, partitions)
        after = broker.resident_megabytes(children=False)
        yield f"{row}: memory they add", "MB", None if before is None or after is None else after - before
    _have_probed(address)
    broker.kill()
    began = time.perf_counter()
    broker.spawn()
    wait_for_port(address)
    until_writable(address, PROBED)
    with stalls.Probe(address, broker.pid or os.getpid()) as probe:
        wait_until_answered(address, f"many-{OFFSETS[1]}", OFFSETS[0], f"of-{OFFSETS[1]}")
        took = time.perf_counter() - began
        longest, _ = probe.result()
    yield f"{MILLION}: start until all groups answer", "s", took
    yield f"{MILLION}: longest wait of a produce while they load", "ms", longest
    yield f"{MILLION}: resident memory afterwards", "MB", broker.resident_megabytes(children=False)


def _have_probed(address: str) -> None:
    with suppress(LoadFailed):  # the topic exists from an earlier row
        load.create_topic(address, PROBED)


def wait_for_coordinators(address: str) -> None:
    """Returns once the coordinator of every partition of `__consumer_offsets` is loaded."""
    wanted, number = set(range(int(FRESH_SETTINGS["offsets.topic.num.partitions"]))), 0
    c = Connection(address)
    while wanted:
        group = f"loaded-{number}"
        partition = partition_of(group, int(FRESH_SETTINGS["offsets.topic.num.partitions"]))
        if partition in wanted:
            groups.wait_for_coordinator(c, group)
            wanted.remove(partition)
        number += 1
    c.close()


def until_writable(address: str, topic: str) -> None:
    """Returns once the topic accepts a record. Raises LoadFailed after LIMIT_S."""
    deadline, c = time.monotonic() + LIMIT_S, Connection(address)
    request = load.produce_frame(topic, load.record_batch(1, 100))
    while True:
        c.send(request)
        try:
            load.base_offset(c.receive())
            break
        except LoadFailed:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    c.close()


def commit_all(address: str, prefix: str, count: int, topic: str, partitions: int) -> None:
    """Commits an offset of every partition, for one group after another."""
    c = Connection(address)
    rows = tuple(
        commit_request.OffsetCommitRequestPartition(
            partition_index=i32(number), committed_offset=i64(1_000_000 + number), committed_metadata=""
        )
        for number in range(partitions)
    )
    for number in range(count):
        request = commit_request.OffsetCommitRequest(
            group_id=GroupId.parse(f"{prefix}-{number}"),
            generation_id_or_member_epoch=i32(-1),
            member_id="",
            topics=(commit_request.OffsetCommitRequestTopic(name=TopicName(topic), partitions=rows),),
        )
        deadline = time.monotonic() + groups.PATIENCE_S
        while codes := {int(each.error_code) for each in c.call(request, _COMMITTED).topics[0].partitions} - {0}:
            if not codes <= groups.NOT_READY or time.monotonic() > deadline:
                raise LoadFailed(f"{address}: commit of {prefix}-{number}: errors {codes}")
            time.sleep(0.01)  # the coordinator of this group is not loaded yet
    c.close()


def wait_until_answered(address: str, prefix: str, count: int, topic: str) -> None:
    """Returns once every group has an offset. Raises LoadFailed if a group has none after LIMIT_S."""
    deadline, left, c = time.monotonic() + LIMIT_S, list(range(count)), Connection(address)
    while left:
        number = left[-1]
        ask = fetch_request.OffsetFetchRequest(
            group_id=GroupId.parse(f"{prefix}-{number}"),
            topics=(fetch_request.OffsetFetchRequestTopic(name=TopicName(topic), partition_indexes=(i32(0),)),),
        )
        reply: Any = c.call(ask, fetch_response.OffsetFetchResponse)
        if not int(reply.error_code) and int(reply.topics[0].partitions[0].committed_offset) == 1_000_000:
            left.pop()
        elif time.monotonic() > deadline:
            raise LoadFailed(f"{address}: {prefix}-{number} has no offset after {LIMIT_S:g} s: {reply}")
        else:
            time.sleep(0.01)
    c.close()


@contextmanager
def rebalancing(address: str, group: str) -> Iterator[int]:
    """Makes a group of MEMBERS rebalance again and again while the block runs. Yields the id of the members' process."""
    words = [sys.executable, "-m", "benchmarks.coordinators", address, group, str(MEMBERS)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if process.stdout.readline() != "up\n":
            raise LoadFailed(f"{address}: {group} does not become stable")
        yield process.pid
        process.stdin.close()
        if process.wait(LIMIT_S) != 0:
            raise LoadFailed(f"{address}: {group} failed")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def main(arguments: Sequence[str]) -> None:
    address, group, count = arguments[0], arguments[1], int(arguments[2])
    members = [groups.Member(address, group) for _ in range(count)]
    groups.wait_for_coordinator(members[0].connection, group)
    groups.until_stable(members, beat_s=BEAT_S)
    print("up", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        left = members.pop()
        left.connection.close()
        groups.leave(members[0].connection, group, [left])
        members.append(groups.Member(address, group))
        groups.until_stable(members, beat_s=BEAT_S, joining=1)
    groups.leave(members[0].connection, group, members)


if __name__ == "__main__":
    main(sys.argv[1:])
