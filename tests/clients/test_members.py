"""Each client but librdkafka as a member of a group: a pattern, commits, pause and seek, a static restart, and a death.

`test_groups.py` and `test_group_members.py` have the same tests of librdkafka, and show how members of each client share
partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.clients import conftest, tools
from tests.clients.members import AIOKAFKA, KAFKA_PYTHON, Aiokafka, Java, Kafkajs, KafkaPython, Member, process, until
from tests.clients.test_groups import consumer, partitions
from tests.support.clients import create, produce
from tests.support.node import Node
from tests.support.talker import Talker

pytestmark = pytest.mark.filterwarnings("ignore:read_text is deprecated", "ignore:open_text is deprecated")
COUNT, PARTITIONS = 100, 2
CLIENTS = ("kafka-python", "aiokafka", "kafkajs", "Java")
#: Opens a member with a client. The arguments are the node, the group, the topic, and a static member's instance id.
Open = Callable[..., Member]


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def opened(client: str, request: pytest.FixtureRequest) -> Open:
    made: dict[str, Callable[[], Open]] = {
        "kafka-python": lambda: KafkaPython,
        "aiokafka": lambda: Aiokafka,
        "kafkajs": lambda: partial(Kafkajs, request.getfixturevalue("javascript")),
        "Java": lambda: partial(Java, request.getfixturevalue("java")),
    }
    return made[client]()


@pytest.fixture(scope="module")
def topic(node: Node) -> str:
    create(node, "each", PARTITIONS, {})
    produce(node, "each", COUNT)
    return "each"


def committed(node: Node, group: str, topic: str) -> list[int]:
    """The committed offsets as another client sees them; -1001 where there is none."""
    with closing(Consumer({"bootstrap.servers": node.kafka, "group.id": group})) as asks:
        found = asks.committed([TopicPartition(topic, number) for number in range(PARTITIONS)], 30)
    return [each.offset for each in found]


def ends(node: Node, topic: str) -> list[int]:
    with closing(Consumer({"bootstrap.servers": node.kafka, "group.id": "unused"})) as asks:
        return [asks.get_watermark_offsets(TopicPartition(topic, number), 30)[1] for number in range(PARTITIONS)]


def test_a_pattern_subscribes_to_its_topics(node: Node, client: str, opened: Open) -> None:
    for name in ("a", "b"):
        create(node, f"{client}-matched-{name}", 1, {})
    with closing(opened(node, f"{client}-matching", f"/^{client}-matched-.*/")) as member:
        assert member.share(2) == [f"{client}-matched-a-0", f"{client}-matched-b-0"]


def test_the_next_member_resumes_at_the_committed_offset(node: Node, client: str, opened: Open) -> None:
    topic, group = f"{client}-committed", f"{client}-commits"
    create(node, topic, PARTITIONS, {})
    produce(node, topic, COUNT)
    with closing(opened(node, group, topic)) as member:
        assert len(member.read(COUNT)) == COUNT
        assert committed(node, group, topic) == [-1001, -1001]
        member.commit_offsets({1: 7})
        assert committed(node, group, topic) == [-1001, 7]
        for number, how in enumerate(member.WAYS):
            produce(node, topic, number, first=COUNT)
            if number:
                member.read(number)
            member.commit(how)
            assert committed(node, group, topic) == ends(node, topic)
    produce(node, topic, 3, first=2 * COUNT)
    with closing(opened(node, group, topic)) as member:
        assert len(member.read(3)) == 3


def test_a_member_pauses_seeks_and_resumes(node: Node, topic: str, client: str, opened: Open) -> None:
    first, second = ends(node, topic)
    with closing(opened(node, f"{client}-paused", topic)) as member:
        member.read(COUNT)
        member.pause(0)
        for partition in range(PARTITIONS):
            member.seek(partition, 3)
        assert sorted(member.read(second - 3)) == [(1, offset) for offset in range(3, second)]
        member.resume(0)
        assert sorted(member.read(first - 3)) == [(0, offset) for offset in range(3, first)]


@pytest.mark.parametrize("client", ["kafka-python", "aiokafka", "Java"], indirect=True)
def test_a_static_member_restarts_without_a_rebalance(node: Node, topic: str, client: str, opened: Open) -> None:
    group = f"{client}-static"
    revoked: list[object] = []
    how = {"group.instance.id": "stays", "partition.assignment.strategy": "range,roundrobin"}
    with consumer(node, topic, group, **how) as stays:
        stays.subscribe([topic], on_revoke=lambda _, places: revoked.append(places))
        until(lambda: stays.poll(0.1), lambda: len(partitions(stays)) == PARTITIONS)
        with in_turns(stays):
            member = opened(node, group, topic, "restarts")
            own = member.share(1)
            member.close()
            times = len(revoked)
            member = opened(node, group, topic, "restarts")
            assert member.share(1) == own
            member.close()
        assert len(revoked) == times


@contextmanager
def in_turns(consumer: Consumer) -> Iterator[None]:
    """Polls the consumer in a thread of its own, because its rebalances need polls."""
    from threading import Event, Thread

    ended = Event()

    def poll() -> None:
        while not ended.is_set():
            consumer.poll(0.05)

    thread = Thread(target=poll)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_members_of_every_client_read_on_after_the_node_was_killed(
    java: Talker, javascript: Talker, tmp_path: Path
) -> None:
    with Node(tmp_path, settings=conftest.SOON) as node, ExitStack() as stack:
        create(node, "outlived", PARTITIONS, {})
        produce(node, "outlived", COUNT)
        made: list[Member] = [
            KafkaPython(node, "python", "outlived"),
            Aiokafka(node, "aio", "outlived"),
            Kafkajs(javascript, node, "js", "outlived"),
            Java(java, node, "java", "outlived"),
        ]
        for member in made:
            stack.enter_context(closing(member))
            assert len(member.read(COUNT)) == COUNT
            member.commit()
        node.kill()
        node.start()
        produce(node, "outlived", 3, first=COUNT)
        for member in made:
            assert len(set(member.read(3))) >= 3


PROGRAMS = {"kafka-python": KAFKA_PYTHON, "aiokafka": AIOKAFKA}


@pytest.mark.parametrize("client", PROGRAMS, indirect=True)
def test_partitions_of_a_killed_process_go_to_the_others(node: Node, topic: str, client: str) -> None:
    group = f"{client}-killed"
    with process(PROGRAMS[client], node, group, topic, PARTITIONS) as killed, consumer(node, topic, group) as stays:
        until(lambda: stays.poll(0.1), lambda: len(partitions(stays)) == 1)
        killed.kill()  # it sends no LeaveGroup
        until(lambda: stays.poll(0.1), lambda: len(partitions(stays)) == PARTITIONS)


@pytest.mark.parametrize("client", ["kafkajs", "Java"], indirect=True)
def test_partitions_of_a_killed_talker_go_to_the_others(node: Node, topic: str, client: str, opened: Open) -> None:
    """The member that stays uses the same client, because kafkajs has an assignor of its own."""
    group = f"{client}-killed"
    with ExitStack() as stack:
        talker = conftest.start_javascript() if client == "kafkajs" else tools.start()
        stack.enter_context(talker)
        kind: Callable[..., Member] = Kafkajs if client == "kafkajs" else Java
        kind(talker, node, group, topic).share(PARTITIONS)
        stays = stack.enter_context(closing(opened(node, group, topic, *([] if client == "kafkajs" else ["stays"]))))
        talker.kill()  # it sends no LeaveGroup
        assert stays.share(PARTITIONS) == [f"{topic}-{number}" for number in range(PARTITIONS)]
