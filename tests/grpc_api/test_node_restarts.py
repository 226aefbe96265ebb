"""SDK programs on a real node that is killed, or stopped and restarted: readers get every record once and in order, groups lose
none, and transactions are committed once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from grpc_api.sdk.blocking import BlockingClient
from grpc_api.sdk.values import ConsumerOptions, Message, ProducerOptions, ReaderOptions
from storage_tiers.types import TopicPartition
from tests.support.node import Node

ROUNDS = 2
A_ROUND = 500


def crash(node: Node) -> None:
    node.kill()
    node.start()


def stop_cleanly(node: Node) -> None:
    node.restart()


@pytest.mark.parametrize("restart", [crash, stop_cleanly])
def test_records_are_appended_once_and_a_reader_continues(tmp_path: Path, restart: Callable[[Node], None]) -> None:
    with Node(tmp_path) as node, BlockingClient.connect(node.grpc) as client:
        client.create_topic("t", partitions=2)
        found: list[Message] = []
        over = threading.Event()

        def read() -> None:
            with client.reader("t") as reader:
                while not (over.is_set() and len(found) >= 2 * ROUNDS * A_ROUND):
                    message = reader.poll(0.2)
                    if message is not None:
                        found.append(message)

        reading = threading.Thread(target=read)
        reading.start()
        try:
            sent = []
            with client.producer(ProducerOptions(batch_bytes=3000, linger_s=0.001)) as producer:
                for round_ in range(ROUNDS):
                    first = 2 * A_ROUND * round_
                    sent += [producer.send("t", b"%d" % (first + n), partition=n % 2) for n in range(A_ROUND)]
                    restart(node)
                    sent += [producer.send("t", b"%d" % (first + A_ROUND + n), partition=n % 2) for n in range(A_ROUND)]
                producer.flush()
            assert [future.exception() for future in sent] == [None] * len(sent)
        finally:
            over.set()
            reading.join(60)
        with client.reader("t", options=ReaderOptions(until_end=True)) as reader:
            stored = list(reader)
        for partition in (0, 1):
            numbers = [int(each.value or b"") for each in stored if each.partition == partition]
            assert numbers == list(range(partition, 2 * ROUNDS * A_ROUND, 2))
        assert sorted(found) == sorted(stored)


@pytest.mark.parametrize("restart", [crash, stop_cleanly])
def test_members_of_a_group_lose_no_record(tmp_path: Path, restart: Callable[[Node], None]) -> None:
    """Two members in threads. A member whose heartbeats the stopped node missed may read uncommitted records again; at the end
    all offsets are committed."""
    options = ConsumerOptions(heartbeat_s=0.2, auto_commit_s=0.2)
    settings: dict[str, str | int | bool] = {"group.initial.rebalance.delay.ms": 0}
    with Node(tmp_path, settings=settings) as node, BlockingClient.connect(node.grpc) as client:
        client.create_topic("t", partitions=2)
        found: list[list[Message]] = [[], []]
        over = threading.Event()

        def read(mine: list[Message]) -> None:
            with client.consumer("g", ["t"], options) as consumer:
                while not over.is_set():
                    message = consumer.poll(0.2)
                    if message is not None:
                        mine.append(message)

        reading = [threading.Thread(target=read, args=(each,)) for each in found]
        for thread in reading:
            thread.start()
        count = 2 * ROUNDS * A_ROUND
        try:
            with client.producer() as producer:
                for first in range(0, count, 2 * A_ROUND):
                    for number in range(first, first + A_ROUND):
                        producer.send("t", b"%d" % number, partition=number % 2)
                    restart(node)
                    for number in range(first + A_ROUND, first + 2 * A_ROUND):
                        producer.send("t", b"%d" % number, partition=number % 2)
            until(lambda: len({each.value for each in (*found[0], *found[1])}) == count)
        finally:
            over.set()
            for thread in reading:
                thread.join(60)
        assert sorted(client.group_offsets("g").values()) == [count // 2] * 2


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("restart", [crash, stop_cleanly])
def test_a_transaction_is_committed_once_over_a_restart(tmp_path: Path, restart: Callable[[Node], None]) -> None:
    """A node that restarts in the middle of transactions loses and duplicates none of their records."""
    with Node(tmp_path) as node, BlockingClient.connect(node.grpc) as client:
        client.create_topic("t", partitions=2)
        with client.transactional_producer("x") as producer:
            for round_ in range(2 * ROUNDS):
                with producer.transaction() as transaction:
                    for n in range(100):
                        transaction.send("t", b"%d" % (100 * round_ + n), partition=n % 2)
                        if n == 50 and round_ % 2:
                            restart(node)
                    transaction.send_offsets("g", {TopicPartition("t", 0): round_})
        end = time.monotonic() + 60
        while client.group_offsets("g") != {TopicPartition("t", 0): 2 * ROUNDS - 1}:
            assert time.monotonic() < end
        with client.reader("t") as reader:
            found = [next(reader) for _ in range(200 * ROUNDS)]
        for partition in (0, 1):
            numbers = [int(each.value or b"") for each in found if each.partition == partition]
            assert numbers == list(range(partition, 200 * ROUNDS, 2))
