"""Group members that are killed, pause, seek, commit without waiting or subscribe to a pattern, and several members of each
client library."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from tests.clients.test_groups import COUNT, PARTITIONS, consumer, partitions, read, until
from tests.support.children import start_child
from tests.support.clients import create, produce
from tests.support.node import Node
from tests.support.talker import Talker

pytestmark = pytest.mark.filterwarnings("ignore:read_text is deprecated", "ignore:open_text is deprecated")
#: The poll timeout of kafka-python's members, which bounds how long the test waits for a member that ends.
POLL_MS = 3000
#: A member in a process of its own: it prints its first assignment, and polls until it is killed.
MEMBER = """
import sys
from confluent_kafka import Consumer
member = Consumer({"bootstrap.servers": sys.argv[1], "group.id": sys.argv[2], "session.timeout.ms": 2000,
                   "heartbeat.interval.ms": 300})
member.subscribe([sys.argv[3]], on_assign=lambda _, own: print(len(own), flush=True))
while True:
    member.poll(0.1)
"""


@pytest.fixture(scope="module")
def topic(node: Node) -> str:
    create(node, "members", PARTITIONS, {})
    produce(node, "members", COUNT)
    return "members"


@contextmanager
def member_process(node: Node, group: str, topic: str) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-c", MEMBER, node.kafka, group, topic]
    process = start_child(words, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_the_partitions_of_a_killed_member_go_to_the_others_after_its_session(node: Node, topic: str) -> None:
    with consumer(node, topic, "killed") as stays:
        until(lambda: stays.poll(0.1), lambda: len(partitions(stays)) == PARTITIONS)
        with member_process(node, "killed", topic) as killed:
            until(lambda: stays.poll(0.1), lambda: len(partitions(stays)) == PARTITIONS // 2)
            assert killed.stdout is not None
            assert killed.stdout.readline() == f"{PARTITIONS // 2}\n"
            killed.kill()  # it sends no LeaveGroup
            until(lambda: stays.poll(0.1), lambda: len(partitions(stays)) == PARTITIONS)


def test_a_pattern_subscribes_to_its_topics_and_to_those_created_later(node: Node) -> None:
    for name in ("pattern-a", "pattern-b", "no-pattern"):
        create(node, name, 1, {})
    more = {"topic.metadata.refresh.interval.ms": 300}
    with consumer(node, "^pattern-.*", "by-pattern", **more) as one:

        def topics() -> set[str]:
            return {each.topic for each in one.assignment()}

        until(lambda: one.poll(0.1), lambda: topics() == {"pattern-a", "pattern-b"})
        create(node, "pattern-c", 1, {})
        until(lambda: one.poll(0.1), lambda: topics() == {"pattern-a", "pattern-b", "pattern-c"})


def test_an_asynchronous_commit_is_reported_and_kept(node: Node, topic: str) -> None:
    done: list[tuple[object, list[TopicPartition]]] = []
    with consumer(node, topic, "async", on_commit=lambda error, places: done.append((error, places))) as one:
        read(one, COUNT)
        one.commit(asynchronous=True)
        until(lambda: one.poll(0.1), lambda: bool(done))
        ((error, places),) = done
        assert error is None and sum(each.offset for each in places if each.offset > 0) == COUNT
        kept = one.committed([TopicPartition(topic, number) for number in range(PARTITIONS)], 30)
        assert sum(each.offset for each in kept if each.offset > 0) == COUNT


def test_a_commit_of_given_offsets_leaves_the_others(node: Node, topic: str) -> None:
    with consumer(node, topic, "given") as one:
        until(lambda: one.poll(0.1), lambda: len(partitions(one)) == PARTITIONS)
        one.commit(offsets=[TopicPartition(topic, 1, 7)], asynchronous=False)
        kept = one.committed([TopicPartition(topic, number) for number in range(2)], 30)
        assert [each.offset for each in kept] == [-1001, 7]


def test_a_member_pauses_seeks_and_resumes(node: Node, topic: str) -> None:
    with consumer(node, topic, "paused-member") as one:
        read(one, COUNT)
        one.pause([TopicPartition(topic, 0)])
        for number in range(PARTITIONS):
            one.seek(TopicPartition(topic, number, 0))
        found: list[tuple[int | None, int | None]] = []
        ends = [one.get_watermark_offsets(TopicPartition(topic, number), 30)[1] for number in range(PARTITIONS)]

        def more() -> None:
            found.extend((each.partition(), each.offset()) for each in one.consume(500, 0.2))

        def whole(numbers: range) -> list[tuple[int, int]]:
            return [(number, offset) for number in numbers for offset in range(ends[number])]

        until(more, lambda: len(found) >= sum(ends[1:]))
        assert sorted(found, key=str) == sorted(whole(range(1, PARTITIONS)), key=str)
        one.resume([TopicPartition(topic, 0)])
        until(more, lambda: len(found) >= sum(ends))
        assert sorted(found, key=str) == sorted(whole(range(PARTITIONS)), key=str)


def test_members_of_kafka_python_share_partitions_and_take_over(node: Node, topic: str) -> None:
    """Each member polls in a thread of its own, as applications do: its poll waits for the rebalance.

    A poll that ends while its JoinGroup is under way forgets an answer that comes before the next poll, and the next poll
    begins another rebalance: short polls on a busy machine rebalance for ever. So polls are long, and a listener reports what
    they assign.
    """
    from kafka import ConsumerRebalanceListener, KafkaConsumer

    whole = set(range(PARTITIONS))
    own: list[set[int]] = [set(), set()]
    ends = [threading.Event(), threading.Event()]

    class Reports(ConsumerRebalanceListener):  # type: ignore[misc]
        def __init__(self, number: int) -> None:
            self._number = number

        def on_partitions_revoked(self, revoked: object) -> None:
            own[self._number] = set()

        def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
            own[self._number] = {each.partition for each in assigned}

    def run(number: int) -> None:
        one = KafkaConsumer(bootstrap_servers=node.kafka, group_id="pythons", heartbeat_interval_ms=300)
        try:
            one.partitions_for_topic(topic)  # a leader that does not know its topic yet assigns nothing
            one.subscribe([topic], listener=Reports(number))
            while not ends[number].is_set():
                one.poll(POLL_MS)
        finally:
            one.close()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    try:
        threads[0].start()
        until(lambda: ends[0].wait(0.1), lambda: own[0] == whole)
        threads[1].start()
        until(lambda: ends[0].wait(0.1), lambda: len(own[0]) == len(own[1]) and own[0] | own[1] == whole)
        ends[1].set()
        until(lambda: ends[0].wait(0.1), lambda: own[0] == whole)
    finally:
        for end, thread in zip(ends, threads, strict=True):
            end.set()
            if thread.is_alive():
                thread.join()


def test_members_of_kafkajs_share_partitions_and_take_over(node: Node, topic: str, javascript: Talker) -> None:
    found = javascript.ask(command="members", bootstrap=node.kafka, topic=topic, group="jss", partitions=PARTITIONS)
    first, second = found["shared"]
    assert sorted(first + second) == sorted(found["left"]) == list(range(PARTITIONS))
    assert len(first) == len(second)


def test_members_of_java_share_partitions_and_take_over(node: Node, topic: str, java: Talker) -> None:
    configs = {"group.id": "javas", "heartbeat.interval.ms": "300"}

    def opened(name: str) -> None:
        java.ask(command="open", name=name, bootstrap=node.kafka, configs=configs, subscribe=topic)

    opened("first")
    assert sorted(java.ask(command="share", names=["first"], each=PARTITIONS)[0]) == list(range(PARTITIONS))
    opened("second")
    first, second = java.ask(command="share", names=["first", "second"], each=PARTITIONS // 2)
    assert sorted(first + second) == list(range(PARTITIONS))
    java.ask(command="close", name="second")
    assert sorted(java.ask(command="share", names=["first"], each=PARTITIONS)[0]) == list(range(PARTITIONS))
    java.ask(command="close", name="first")
