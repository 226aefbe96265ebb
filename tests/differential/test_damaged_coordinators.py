"""Coordinators whose logs hold damaged records, on both brokers: each partition is damaged on disk while its broker is stopped.

Groups are answered equally. Transactional ids differ on purpose: Kafka logs the error and serves what it had read until then.
So it has forgotten the newer ids, and a transaction that one of them has open is never completed. tidelog serves none of the
ids of such a partition until it is readable.
"""

from __future__ import annotations

import itertools
import json
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from service.coordination import group_records, transaction_records
from service.coordination.coordinator_runtime import partition_of
from service.coordination.group_records import CommittedOffset, GroupKey, GroupMetadata, MemberMetadata, OffsetKey
from service.coordination.transaction_records import TransactionStatus, TransactionValue
from storage_tiers.records.batch import headers
from storage_tiers.records.builder import NewRecord, build_batch
from tests.differential.peer import ANSWER_SECONDS, Peer, PeerFailed
from tests.differential.sessions.groups import NOT_YET, committing, stable
from tests.differential.sessions.transactions import begun
from tests.service.coordination.whole_values import encode_group
from tests.support import kafka_jars
from tests.support.apache_kafka import ApacheKafka
from tests.support.node import Node

pytestmark = [pytest.mark.differential, pytest.mark.timeout(300)]

PARTITIONS = 16
SETTINGS: Mapping[str, int] = {
    "offsets.topic.num.partitions": PARTITIONS,
    "transaction.state.log.num.partitions": PARTITIONS,
    "group.initial.rebalance.delay.ms": 0,
}
TOPICS = ("__consumer_offsets", "__transaction_state")
#: Damage that both brokers read past, and damage that keeps the partition of a group from being loaded.
HARMLESS = ("none", "unknown key", "no index", "empty segment", "cut batch")
HARMFUL = ("cut value", "cut group", "newer value", "newer group", "bad CRC", "null in key", "short key", "no key")
NAMES = {
    damage: next(f"g{n}" for n in itertools.count() if partition_of(f"g{n}", PARTITIONS) == number)
    for number, damage in enumerate((*HARMLESS, *HARMFUL))
}
_NEWER = struct.pack(">h", 9)
Answers = dict[str, tuple[str, ...]]


def record(damage: str, name: str, topic: str) -> tuple[bytes | None, bytes] | None:
    """Key and value of the record that is added; None for damage of another kind."""
    if topic == TOPICS[0]:
        key = group_records.encode_key(OffsetKey(name, "t", 0))
        value = group_records.encode_offset(CommittedOffset(5, -1, "m", 1))
        member = MemberMetadata("m", None, "c", "h", 30_000, 30_000, b"", b"")
        group = encode_group(GroupMetadata("consumer", 3, "range", "m", 1, (member,)))
        group_key = group_records.encode_key(GroupKey(name))
    else:
        key = group_key = transaction_records.encode_key(name)
        empty = TransactionValue(77, 0, 60_000, TransactionStatus.EMPTY, None, 1, 1)
        value = group = transaction_records.encode_value(empty)
    return {
        "unknown key": (struct.pack(">h", 99) + b"whatever", b"x"),
        "cut batch": (key, value),
        "cut value": (key, value[:-5]),
        "cut group": (group_key, group[:-5]),
        "newer value": (key, _NEWER + value[2:]),
        "newer group": (group_key, _NEWER + group[2:]),
        "null in key": (key[:2] + b"\xff" * 6, value),
        "short key": (b"\0", value),
        "no key": (None, value),
    }.get(damage)


def spoil(partition: Path, damage: str, added: tuple[bytes | None, bytes] | None) -> None:
    newest = max(partition.glob("*.log"))
    data = newest.read_bytes()
    found = list(headers(memoryview(data)))
    last = found[-1][1]
    if added is not None:
        batch = bytearray(build_batch([NewRecord(*added)]))
        struct.pack_into(">q", batch, 0, last.last_offset + 1)  # not covered by the CRC
        struct.pack_into(">i", batch, 12, last.leader_epoch)
        newest.write_bytes(data + batch[: -7 if damage == "cut batch" else len(batch)])
    elif damage == "bad CRC":
        at = found[0][1].size - 1
        newest.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
    elif damage == "no index":
        for index in (*partition.glob("*.index"), *partition.glob("*.timeindex")):
            index.unlink()
    elif damage == "empty segment":
        (partition / f"{last.last_offset + 1:020}.log").write_bytes(b"")


def settled(peer: Peer, api: str, version: int, rows: str, /, **values: Any) -> Any:
    """The first row of the answer, once the partition has been loaded. NOT_COORDINATOR is final after a broker is loaded."""
    deadline = time.monotonic() + ANSWER_SECONDS
    while (row := peer.quietly(api, version, **values)[rows][0])["error_code"] == NOT_YET[1]:
        if time.monotonic() > deadline:
            raise PeerFailed(f"{peer.name}: {values} is being loaded for ever")
        time.sleep(0.02)
    return row


def answers(peer: Peer, topic: str) -> tuple[Answers, Answers]:
    """The answers about each group and about each transactional id, once all coordinators have been loaded."""
    deadline = time.monotonic() + ANSWER_SECONDS
    sound = [NAMES[damage] for damage in HARMLESS]
    while any(row["error_code"] != "NONE" for row in peer.quietly("describe_groups", 5, groups=sound)["groups"]):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    groups: Answers = {}
    ids: Answers = {}
    for damage, name in NAMES.items():
        asked = [{"group_id": name, "topics": [{"name": topic, "partition_indexes": [0]}]}]
        fetched = settled(peer, "offset_fetch", 8, "groups", groups=asked)
        offsets = [row["committed_offset"] for each in fetched["topics"] for row in each["partitions"]]
        found = peer.quietly("find_coordinator", 4, coordinator_keys=[name], key_type=0)["coordinators"][0]
        beat = {"group_id": name, "member_id": "nobody", "generation_id": 1, "group_instance_id": None}
        heartbeat = peer.quietly("heartbeat", 3, **beat)["error_code"]
        shown = settled(peer, "describe_groups", 5, "groups", groups=[name])
        codes = fetched["error_code"], found["error_code"], heartbeat, shown["error_code"]
        groups[damage] = *codes, str(offsets), shown["group_state"]
        row = settled(peer, "describe_transactions", 0, "transaction_states", transactional_ids=[name])
        ids[damage] = row["error_code"], row["transaction_state"]
    listed = peer.quietly("list_groups", 4)
    groups["listed"] = listed["error_code"], *sorted(each["group_id"] for each in listed["groups"])
    return groups, ids


class PlainPeer(Peer):
    """Adds no prefix to names, because the partition of a group depends on its whole name."""

    def named(self, name: str) -> str:
        return name


def play(name: str, broker: ApacheKafka | Node) -> tuple[Answers, Answers]:
    def peer() -> Peer:
        return PlainPeer(name, broker.address if isinstance(broker, ApacheKafka) else broker.kafka, "")

    before = peer()
    topic, topic_id = before.create()
    for each in NAMES.values():
        group, member, generation = stable(before, each)
        who = {"member_id": member, "generation_id_or_member_epoch": generation}
        before.quietly("offset_commit", 7, **committing(group, topic, topic_id, 0, **who))
        begun(before, each)
    before.close_connection()
    broker.stop()
    for internal in TOPICS:
        for damage, each in NAMES.items():
            partition = broker.data_dir / f"{internal}-{partition_of(each, PARTITIONS)}"
            spoil(partition, damage, record(damage, each, internal))
    broker.start()
    after = peer()
    try:
        return answers(after, topic)
    finally:
        after.close_connection()


def test_damaged_partitions_say_so_and_take_no_other_down(tmp_path: Path) -> None:
    with ApacheKafka(tmp_path / "kafka", settings=SETTINGS, jvm=kafka_jars.QUICK_START) as kafka:
        theirs, _ = play("kafka", kafka)
    with Node(tmp_path / "tidelog", settings=SETTINGS) as node:
        ours, ids = play("tidelog", node)
        _, body = node.get("/readyz")
        metrics = node.get("/metrics")[1]
        output = node.output()
    assert ours == theirs
    assert {damage for damage, row in ours.items() if row[0] == "NOT_COORDINATOR"} == set(HARMFUL)
    served, refused = ("NONE", "Empty"), ("NOT_COORDINATOR", "")
    assert ids == {**dict.fromkeys(HARMLESS, served), **dict.fromkeys(HARMFUL, refused)}
    damaged = {f"{topic}-{partition_of(NAMES[damage], PARTITIONS)}" for topic in TOPICS for damage in HARMFUL}
    assert json.loads(body)["ready"]
    assert set(json.loads(body)["unreadable_coordinators"]) == damaged
    assert f"\ntidelog_coordinators_unreadable {len(damaged)}\n" in metrics
    assert output.count("coordinator.unreadable") == len(damaged)
