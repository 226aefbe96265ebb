"""SDK programs on a real node that is killed, or stopped and restarted: every record is read once, in order, to the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from grpc_api.sdk.blocking import BlockingClient
from grpc_api.sdk.values import Message, ProducerOptions, ReaderOptions
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
