"""Consumer groups with real clients: subscribe, join and leave, commit, static members, and requests of their admin clients."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.clients import tools
from tests.differential.peer import Peer
from tests.differential.sessions.groups import stable
from tests.support.clients import create, produce
from tests.support.node import Node
from tests.support.talker import Talker

pytestmark = pytest.mark.filterwarnings("ignore:read_text is deprecated", "ignore:open_text is deprecated")
COUNT, PARTITIONS = 200, 4
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def topic(node: Node) -> str:
    create(node, "shared", PARTITIONS, {})
    produce(node, "shared", COUNT)
    return "shared"


def until(step: Callable[[], object], condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        step()


@contextmanager
def consumer(node: Node, topic: str, group: str, **more: Any) -> Iterator[Consumer]:
    settings = {"bootstrap.servers": node.kafka, "group.id": group, "auto.offset.reset": "earliest"}
    made = Consumer({**settings, "enable.auto.commit": False, "heartbeat.interval.ms": 300, **more})
    made.subscribe([topic])
    try:
        yield made
    finally:
        made.close()


def read(consumer: Consumer, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []

    def more() -> None:
        for message in consumer.consume(500, 0.2):
            assert message.error() is None, message.error()
            value = message.value()
            assert value is None or isinstance(value, bytes)
            found.append(value)

    until(more, lambda: len(found) >= count)
    return found


def partitions(consumer: Consumer) -> set[int]:
    return {each.partition for each in consumer.assignment()}


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "cooperative-sticky"])
def test_librdkafka_members_share_partitions_and_take_over_from_one_that_leaves(
    node: Node, topic: str, assignor: str
) -> None:
    how = {"partition.assignment.strategy": assignor}
    with consumer(node, topic, f"lib-{assignor}", **how) as first:
        assert len(read(first, COUNT)) == COUNT
        first.commit(asynchronous=False)
        with consumer(node, topic, f"lib-{assignor}", **how) as second:

            def poll() -> None:
                first.poll(0.1)
                second.poll(0.1)

            until(poll, lambda: len(partitions(first)) == len(partitions(second)) == PARTITIONS // 2)
            assert partitions(first) | partitions(second) == set(range(PARTITIONS))
        until(lambda: first.poll(0.1), lambda: len(partitions(first)) == PARTITIONS)


def test_a_group_resumes_where_it_committed(node: Node, topic: str) -> None:
    with consumer(node, topic, "resumed") as before:
        read(before, COUNT)
        before.commit(asynchronous=False)
        committed = before.committed([TopicPartition(topic, number) for number in range(PARTITIONS)], 30)
        assert sum(each.offset for each in committed) == COUNT
    produce(node, topic, 3, first=COUNT)
    with consumer(node, topic, "resumed") as after:
        assert len(read(after, 3)) == 3


def test_a_static_member_that_restarts_keeps_its_partitions_without_a_rebalance(node: Node, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})

    def described() -> Any:
        return admin.describe_consumer_groups(["static"])["static"].result(30)

    revoked: list[object] = []
    with consumer(node, topic, "static", **{"group.instance.id": "a"}) as stays:
        stays.subscribe([topic], on_revoke=lambda _, parts: revoked.append(parts))
        with consumer(node, topic, "static", **{"group.instance.id": "b"}) as restarts:

            def poll() -> None:
                stays.poll(0.1)
                restarts.poll(0.1)

            until(poll, lambda: len(partitions(stays)) == len(partitions(restarts)) == PARTITIONS // 2)
            own = partitions(restarts)
            times = len(revoked)
        with consumer(node, topic, "static", **{"group.instance.id": "b"}) as restarted:
            until(lambda: (stays.poll(0.05), restarted.poll(0.1)), lambda: partitions(restarted) == own)
            until(lambda: stays.poll(0.1), lambda: described().state is ConsumerGroupState.STABLE)
            assert sorted(each.group_instance_id for each in described().members) == ["a", "b"]
        assert len(revoked) == times


def test_an_admin_client_lists_describes_alters_and_deletes(node: Node, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    with consumer(node, topic, "managed", **{"client.id": "me"}) as one:
        read(one, COUNT)
        one.commit(asynchronous=False)
        listed = admin.list_consumer_groups().result(30)
        assert not listed.errors
        assert {g.group_id: g.state for g in listed.valid}["managed"] is ConsumerGroupState.STABLE
        found = admin.describe_consumer_groups(["managed"])["managed"].result(30)
        (member,) = found.members
        assert (member.client_id, member.host, found.partition_assignor) == ("me", "/127.0.0.1", "range")
        assert {each.partition for each in member.assignment.topic_partitions} == set(range(PARTITIONS))
    wanted = ConsumerGroupTopicPartitions("managed", [TopicPartition(topic, 0, 1)])
    admin.alter_consumer_group_offsets([wanted])["managed"].result(30)
    request = ConsumerGroupTopicPartitions("managed", [TopicPartition(topic, 0)])
    answer = admin.list_consumer_group_offsets([request])["managed"].result(30)
    assert [each.offset for each in answer.topic_partitions] == [1]
    admin.delete_consumer_groups(["managed"])["managed"].result(30)
    assert "managed" not in {each.group_id for each in admin.list_consumer_groups().result(30).valid}


def test_a_group_outlives_a_killed_node(node: Node, topic: str) -> None:
    with consumer(node, topic, "survives") as one:
        read(one, COUNT)
        one.commit(asynchronous=False)
        node.kill()
        node.start()
        produce(node, topic, 2, first=900)
        assert len(read(one, 2)) == 2
        one.commit(asynchronous=False)


def test_a_member_survives_a_pause_of_the_node_if_its_heartbeat_was_sent_in_time(node: Node) -> None:
    """The pause is longer than the member's session. The test sends the requests itself, because librdkafka leaves the group
    after a session without answers."""
    peer = Peer("node", node.kafka, "paused")
    group, member, generation = stable(peer, session_timeout=2000)
    beat = {"group_id": group, "member_id": member, "generation_id": generation}
    assert node.process is not None
    node.process.send_signal(signal.SIGSTOP)
    try:
        waiting = peer.begin("heartbeat", 0, **beat)
        end = time.monotonic() + 4
        until(lambda: time.sleep(0.1), lambda: time.monotonic() > end)
    finally:
        node.process.send_signal(signal.SIGCONT)
    assert waiting.end("after the pause")["error_code"] == "NONE"
    assert peer.quietly("heartbeat", 0, **beat)["error_code"] == "NONE"
    # A member that sends nothing is gone after its session.
    until(
        lambda: time.sleep(0.2),
        lambda: peer.quietly("describe_groups", 0, groups=[group])["groups"][0]["members"] == [],
    )
    peer.close_connection()


async def test_aiokafka_members_share_partitions(node: Node, topic: str) -> None:
    from aiokafka import AIOKafkaConsumer

    def made() -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            topic,
            bootstrap_servers=node.kafka,
            group_id="aio",
            auto_offset_reset="earliest",
            heartbeat_interval_ms=300,
        )

    first, second = made(), made()
    await first.start()
    try:
        got = 0
        async with asyncio.timeout(PATIENCE_S):
            while got < COUNT:
                got += sum(map(len, (await first.getmany(timeout_ms=500)).values()))
            await first.commit()
            await second.start()
            while not len(first.assignment()) == len(second.assignment()) == PARTITIONS // 2:
                await first.getmany(timeout_ms=100)
                await second.getmany(timeout_ms=100)
            assert {each.partition for each in first.assignment() | second.assignment()} == set(range(PARTITIONS))
            await second.stop()
            while len(first.assignment()) != PARTITIONS:
                await first.getmany(timeout_ms=100)
    finally:
        await first.stop()


def test_kafka_python_reads_and_commits_as_a_member(node: Node, topic: str) -> None:
    from kafka import KafkaConsumer

    one = KafkaConsumer(
        topic, bootstrap_servers=node.kafka, group_id="python", auto_offset_reset="earliest", enable_auto_commit=False
    )
    try:
        got: list[object] = []
        until(lambda: got.extend(r for part in one.poll(500).values() for r in part), lambda: len(got) >= COUNT)
        one.commit()
        assert sum(one.committed(each) or 0 for each in one.assignment()) == len(got)
    finally:
        one.close()


def test_kafkajs_reads_as_a_member(node: Node, topic: str, javascript: Talker) -> None:
    found = javascript.ask(command="group", bootstrap=node.kafka, topic=topic, group="js", count=COUNT)
    assert len(found) >= COUNT
    described = javascript.ask(
        command="admin", bootstrap=node.kafka, method="fetchOffsets", arguments=[{"groupId": "js", "topics": [topic]}]
    )
    assert sum(int(each["offset"]) for each in described[0]["partitions"]) >= COUNT


def test_the_console_consumer_of_kafka_reads_as_a_member(node: Node, topic: str, java: Talker) -> None:
    words = ["--bootstrap-server", node.kafka, "--topic", topic, "--group", "java", "--from-beginning"]
    words += ["--max-messages", str(COUNT)]
    printed = java.ask(command="tool", tool=tools.CLASSES["kafka-console-consumer"], arguments=words)["printed"]
    assert printed.count("value-") == COUNT
    words = ["--bootstrap-server", node.kafka, "--describe", "--group", "java"]
    printed = java.ask(command="tool", tool=tools.CLASSES["kafka-consumer-groups"], arguments=words)["printed"]
    rows = [line.split() for line in printed.splitlines() if line.startswith("java")]
    assert len(rows) == PARTITIONS and "has no active members" in printed
    assert sum(int(row[3]) for row in rows) >= COUNT  # CURRENT-OFFSET: it commits what it has polled
