"""Measures clusters of three brokers, of which broker 1 has the controller: kills of brokers, metadata commands, and 10,000
partitions.

Topics have one replica, as in all benchmarks, so a partition is served again only after its broker has restarted. A killed
process is started again at once, as by a supervisor. Commands and creations go to broker 2, which has no controller.
"""

from __future__ import annotations

import datetime as dt
import itertools
import select
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from kio.schema.create_topics.v5 import request as create_request
from kio.schema.create_topics.v5 import response as create_response
from kio.schema.incremental_alter_configs.v1 import request as alter_request
from kio.schema.incremental_alter_configs.v1 import response as alter_response
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i16, i32, i32Timedelta

from benchmarks import load, starts
from benchmarks.load import Connection, LoadFailed
from benchmarks.starts import ABSENT, LIMIT_S, until
from benchmarks.table import Table
from tests.support.cluster import Cluster
from tests.support.kafka_cluster import KafkaCluster

BROKERS = (1, 2, 3)
CONTROLLER, ASKED, DIES = BROKERS
TOPICS, PARTITIONS_A_TOPIC = 10, 1000
AT_ONCE = 64
ATTEMPT_S = 2.0
_TOPIC, _SET = 2, 0
_CREATED = {0, 36}  # no error, and TOPIC_ALREADY_EXISTS after an attempt without an answer


class Nodes(NamedTuple):
    """Three running brokers by id, and the name of the attribute that has a broker's address."""

    brokers: Mapping[int, Any]
    attribute: str

    def address(self, broker: int) -> str:
        return str(getattr(self.brokers[broker], self.attribute))

    def kill(self, broker: int) -> None:
        self.brokers[broker].kill()

    def spawn(self, broker: int) -> None:
        self.brokers[broker].spawn()


def measure(table: Table, directory: Path, *, rounds: int, seconds: float, warm_up: float, kafka: bool) -> None:
    with ExitStack() as stack:
        made: dict[str, Nodes] = {}
        if kafka:
            made["kafka"] = Nodes(stack.enter_context(KafkaCluster(directory / "kafka", heap="1g")).nodes, "address")
        ours = Cluster(directory / "tidelog", f"file://{directory / 'store'}")
        made["tidelog"] = Nodes(stack.enter_context(ours).nodes, "kafka")
        for name, nodes in made.items():
            for broker in BROKERS:
                _create(nodes, f"led-{broker}", on=broker)
            for number in range(AT_ONCE):
                _create(nodes, f"command-{number}", on=ASKED)
            _commands(nodes, warm_up)
            table.notes.append(f"{name}: warmed by {warm_up:g} s of commands.")
        for number in range(rounds):
            for row, unit, one in (
                (
                    "metadata commands, 64 at once, sent to another broker",
                    "commands/s",
                    lambda n: _commands(n, seconds),
                ),
                ("a broker is killed: until its partition takes a record", "s", _broker_killed),
                ("the controller is killed: until a topic can be created", "s", _controller_killed),
            ):
                for name, nodes in _turned(made, number).items():
                    table.add(name, row, unit, one(nodes))
        topics = [f"many-{number}" for number in range(TOPICS)]
        for name, nodes in made.items():
            table.add(
                name, "10,000 partitions of three brokers: until all have leaders", "s", _create_many(nodes, topics)
            )
        for number in range(rounds):
            for name, nodes in _turned(made, number).items():
                table.add(
                    name, "10,000 partitions of three brokers: restart after kill -9", "s", _all_killed(nodes, topics)
                )


def _turned(made: Mapping[str, Nodes], number: int) -> Mapping[str, Nodes]:
    names = list(made)
    return {name: made[name] for name in (reversed(names) if number % 2 else names)}


# --- rows -------------------------------------------------------------------------------------------------------------
def _commands(nodes: Nodes, seconds: float) -> float:
    """Returns IncrementalAlterConfigs requests per second. Each connection keeps one in flight, which changes the retention of
    its own topic."""
    poll = select.epoll()
    connections = [Connection(nodes.address(ASKED)) for _ in range(AT_ONCE)]
    requests = [
        itertools.cycle([_alter(f"command-{n}", value) for value in ("1000000", "2000000")]) for n in range(AT_ONCE)
    ]
    of_socket = {each.socket.fileno(): (each, request) for each, request in zip(connections, requests, strict=True)}
    for fd in of_socket:
        poll.register(fd, select.EPOLLIN)
    began = time.perf_counter()
    for connection, request in of_socket.values():
        connection.send(next(request))
    answers, under_way = 0, AT_ONCE
    while under_way:
        for fd, _ in poll.poll():
            connection, request = of_socket[fd]
            (answer,) = load.parsed(connection.receive(), alter_response.IncrementalAlterConfigsResponse).responses
            if int(answer.error_code):
                raise LoadFailed(f"a command failed: {answer.error_message}")
            answers += 1
            if time.perf_counter() < began + seconds:
                connection.send(next(request))
            else:
                under_way -= 1
    elapsed = time.perf_counter() - began
    poll.close()
    for connection in connections:
        connection.close()
    return answers / elapsed


def _broker_killed(nodes: Nodes) -> float:
    batch = load.record_batch(1, 100)
    began = time.perf_counter()
    nodes.kill(DIES)
    nodes.spawn(DIES)
    until(lambda: starts.accepts(nodes.address(DIES), f"led-{DIES}", (0,), batch), "its partition takes a record")
    return time.perf_counter() - began


def _controller_killed(nodes: Nodes) -> float:
    name = f"created-{time.monotonic_ns()}"
    began = time.perf_counter()
    nodes.kill(CONTROLLER)
    nodes.spawn(CONTROLLER)
    _create(nodes, name, on=ASKED)
    took = time.perf_counter() - began
    batch = load.record_batch(1, 100)
    until(lambda: starts.accepts(nodes.address(CONTROLLER), f"led-{CONTROLLER}", (0,), batch), "it serves again")
    return took


def _create_many(nodes: Nodes, topics: Sequence[str]) -> float:
    began = time.perf_counter()
    for topic in topics:
        _create(nodes, topic, partitions=PARTITIONS_A_TOPIC)
    _wait_all_led(nodes, topics)
    return time.perf_counter() - began


def _all_killed(nodes: Nodes, topics: Sequence[str]) -> float:
    for broker in BROKERS:
        nodes.kill(broker)
    began = time.perf_counter()
    for broker in BROKERS:
        nodes.spawn(broker)
    _wait_all_led(nodes, topics)
    return time.perf_counter() - began


# --- requests ---------------------------------------------------------------------------------------------------------
def _wait_all_led(nodes: Nodes, topics: Sequence[str]) -> None:
    """Returns once broker 2 names a leader for each partition, and the first and last partition of each topic accept a
    record."""
    batch = load.record_batch(1, 100)
    until(lambda: _are_led(nodes.address(ASKED), topics), "each partition has a leader", (KafkaException,))
    left = {(topic, index) for topic in topics for index in (0, PARTITIONS_A_TOPIC - 1)}

    def all_accept() -> bool:
        for topic, index in list(left):
            leader = load.leaders(nodes.address(ASKED), topic)[index]
            if starts.accepts(leader, topic, (index,), batch):
                left.discard((topic, index))
        return not left

    until(all_accept, "the partitions take records", (*ABSENT, KeyError))  # a broker is not in the metadata yet


def _are_led(address: str, topics: Sequence[str]) -> bool:
    found = AdminClient({"bootstrap.servers": address}).list_topics(timeout=ATTEMPT_S).topics
    return all(
        topic in found
        and len(found[topic].partitions) == PARTITIONS_A_TOPIC
        and all(each.leader >= 0 for each in found[topic].partitions.values())
        for topic in topics
    )


def _create(nodes: Nodes, name: str, *, partitions: int = 1, on: int | None = None) -> None:
    """Creates a topic through broker 2, on the broker `on`; without `on` the cluster places the replicas. Repeats the request
    until the topic exists."""
    assigned: tuple[create_request.CreatableReplicaAssignment, ...] = ()
    if on is not None:
        assigned = (create_request.CreatableReplicaAssignment(partition_index=i32(0), broker_ids=(BrokerId(on),)),)
    topic = create_request.CreatableTopic(
        name=TopicName(name),
        num_partitions=i32(-1 if assigned else partitions),
        replication_factor=i16(-1 if assigned else 1),
        assignments=assigned,
        configs=(),
    )
    timeout = i32Timedelta.parse(dt.timedelta(seconds=LIMIT_S if partitions > 1 else ATTEMPT_S))
    request = create_request.CreateTopicsRequest(topics=(topic,), timeout=timeout, validate_only=False)

    def is_created() -> bool:
        connection = Connection(nodes.address(ASKED))
        try:
            connection.socket.settimeout(LIMIT_S if partitions > 1 else ATTEMPT_S)
            answer = connection.call(request, create_response.CreateTopicsResponse)
            return int(answer.topics[0].error_code) in _CREATED
        finally:
            connection.close()

    until(is_created, f"{name} is created")


def _alter(topic: str, retention_ms: str) -> bytes:
    config = alter_request.AlterableConfig(name="retention.ms", config_operation=i8(_SET), value=retention_ms)
    resource = alter_request.AlterConfigsResource(resource_type=i8(_TOPIC), resource_name=topic, configs=(config,))
    return load.frame(alter_request.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False))
