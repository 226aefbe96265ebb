"""The blocking client, used from several threads, on a node in a thread of its own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from grpc_api.contract.coordinator_errors import ProducerFenced
from grpc_api.sdk.blocking import BlockingClient
from grpc_api.sdk.values import ConsumerOptions, ProducerOptions, ReaderOptions
from storage_tiers.errors import InvalidRecord, InvalidRequest, LeaderNotAvailable, LogError, UnknownTopicOrPartition
from storage_tiers.types import TopicPartition
from tests.grpc_api.support import served

UNTIL_END = ReaderOptions(until_end=True)


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """The address of a node that runs in another thread's loop."""
    known: list[str] = []
    ready, over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with served(tmp_path / "data") as node:
            known.append(node.address)
            ready.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(60)
    yield known[0]
    over.set()
    thread.join()


@pytest.fixture
def client(address: str) -> Iterator[BlockingClient]:
    with BlockingClient.connect(address) as connected:
        yield connected


def test_sent_records_are_read(client: BlockingClient) -> None:
    client.create_topic("t", partitions=2)
    with client.producer(ProducerOptions(compression="lz4")) as producer:
        sent = [producer.send("t", b"%d" % number, key=b"%d" % (number % 5)) for number in range(2000)]
        producer.flush()
        assert all(future.done() for future in sent)
    with client.reader("t", options=UNTIL_END) as reader:
        found = list(reader)
    assert sorted(int(message.value or b"") for message in found) == list(range(2000))
    assert client.offsets("t", "latest") == reader.position


def test_transactions_are_committed_or_aborted_as_their_blocks_end(client: BlockingClient) -> None:
    client.create_topic("t")
    client.create_topic("source")
    with client.transactional_producer("x") as producer:
        with producer.transaction() as transaction:
            sent = [transaction.send("t", b"%d" % number) for number in range(100)]
            transaction.send_offsets("g", {TopicPartition("source", 0): 5})
        assert [each.result().offset for each in sent] == list(range(100))
        with pytest.raises(ZeroDivisionError), producer.transaction() as transaction:
            transaction.send("t", b"lost").result()
            raise ZeroDivisionError
        with pytest.raises(InvalidRequest, match="begin another"):
            transaction.send("t", b"late")
        with pytest.raises(KeyboardInterrupt), producer.transaction() as transaction:
            transaction.send("t", b"lost").result()
            raise KeyboardInterrupt
        with pytest.raises(ProducerFenced, match="another producer"), producer.transaction() as transaction:
            transaction.send("t", b"lost").result()
            with client.transactional_producer("x") as newer, newer.transaction() as other:
                other.send("t", b"last")
    end = time.monotonic() + 60
    while client.group_offsets("g") != {TopicPartition("source", 0): 5}:
        assert time.monotonic() < end
    found: list[bytes | None] = []
    while b"last" not in found:
        assert time.monotonic() < end
        with client.reader("t", options=UNTIL_END) as reader:
            found = [message.value for message in reader]
    assert found == [*(b"%d" % number for number in range(100)), b"last"]


def test_a_copy_loop_copies_each_record_once(client: BlockingClient) -> None:
    client.create_topic("source")
    client.create_topic("t")
    with client.producer() as plain:
        for number in range(30):
            plain.send("source", b"%02d" % number)
    by_hand = ConsumerOptions(auto_commit_s=None)
    with client.consumer("g", ["source"], by_hand) as consumer, client.transactional_producer("x") as producer:
        copied = 0
        while copied < 30:
            messages = consumer.take(7)
            with producer.transaction() as transaction:
                for message in messages:
                    transaction.send("t", message.value)
                transaction.send_offsets(consumer)
            copied += len(messages)
    with client.reader("t") as copies:
        assert [next(copies).value for _ in range(30)] == [b"%02d" % number for number in range(30)]


def test_threads_share_a_producer(client: BlockingClient) -> None:
    client.create_topic("t")
    with client.producer() as producer, ThreadPoolExecutor(4) as pool:

        def send(thread: int) -> list[int]:
            futures = [producer.send("t", b"%d %d" % (thread, number)) for number in range(300)]
            return [future.result(30).offset for future in futures]

        offsets = list(pool.map(send, range(4)))
    assert sorted(offset for each in offsets for offset in each) == list(range(1200))
    assert all(each == sorted(each) for each in offsets)


def test_a_reader_polls_seeks_and_continues(client: BlockingClient) -> None:
    client.create_topic("t")
    with client.reader("t") as reader:
        assert reader.poll(0.2) is None
        with client.producer() as producer:
            for number in range(10):
                producer.send("t", b"%d" % number, timestamp=1_700_000_000_000 + number)
        first = reader.poll(20)
        assert first is not None
        assert first.value == b"0"
        reader.seek({0: 8})
        assert [next(reader).value, next(reader).value] == [b"8", b"9"]
        reader.seek(datetime.fromtimestamp(1_700_000_000.003, UTC), partition=0)
        assert next(reader).value == b"3"
        assert reader.position == {0: 4}


def test_topics_are_managed(client: BlockingClient) -> None:
    client.create_topic("t", configs={"retention.ms": "1000"})
    client.add_partitions("t", 3)
    assert [(topic.name, len(topic.partitions)) for topic in client.topics()] == [("t", 3)]
    client.alter_configs("t", {"retention.ms": None, "segment.bytes": "2000000"})
    assert client.configs("t")["segment.bytes"].value == "2000000"
    with client.producer() as producer:
        producer.send("t", b"x", partition=1)
    sealed = client.seal("t")
    assert [part.tiered_end for part in sealed] == [0, 1, 0]
    manifests = client.cold_manifests("t")
    assert [manifest.end for manifest in manifests if not isinstance(manifest, LogError)] == [0, 1, 0]
    assert [each.end for each in client.cold_segments("t", 1)] == [1]
    assert client.delete_records("t", 1, -1) == 1
    client.delete_topic("t")
    with pytest.raises(UnknownTopicOrPartition):
        client.topic("t")


def test_errors_come_through_futures_and_calls(client: BlockingClient) -> None:
    with client.producer() as producer:
        failed = producer.send("nothing", b"x")
        with pytest.raises(UnknownTopicOrPartition):
            failed.result(60)
    with pytest.raises(UnknownTopicOrPartition), client.reader("nothing") as reader:
        next(reader)


def test_errors_arrive_through_futures_and_the_producer_continues(client: BlockingClient) -> None:
    client.create_topic("t")
    with client.producer() as producer:
        mistakes: list[dict[str, Any]] = [{"value": "text"}, {"value": 5}, {"headers": {"a": b""}}, {"timestamp": -1}]
        for wrong in mistakes:
            with pytest.raises(InvalidRecord):
                producer.send("t", **{"value": b"", **wrong}).result(60)
        with pytest.raises(InvalidRequest):
            producer.send(None, b"x").result(60)  # type: ignore[arg-type]
        assert producer.send("t", b"x").result(60).offset == 0


def test_a_full_buffer_makes_threads_wait_and_loses_nothing(client: BlockingClient) -> None:
    client.create_topic("t")
    size = 256 << 10
    options = ProducerOptions(buffer_bytes=size * 2, batch_bytes=size)
    with client.producer(options) as producer, ThreadPoolExecutor(4) as pool:
        pools = [pool.submit(lambda: [producer.send("t", b"x" * (size // 3)) for _ in range(12)]) for _ in range(4)]
        sent = [future for each in pools for future in each.result(60)]
        producer.flush()
        assert sorted(future.result(0).offset for future in sent) == list(range(48))


def test_handles_are_futures_that_others_wait_for(client: BlockingClient) -> None:
    client.create_topic("t")
    with client.producer() as producer:
        sent = [producer.send("t", b"%d" % number) for number in range(50)]
        assert not sent[0].cancel()
        seen: list[int] = []
        sent[-1].add_done_callback(lambda future: seen.append(future.result().offset))
        done, waiting = wait(sent, timeout=60)
        assert (len(done), len(waiting)) == (50, 0)
        assert {future.result().offset for future in as_completed(sent)} == set(range(50))
        assert seen == [49]


def test_clients_come_and_go_in_one_thread(address: str) -> None:
    for _ in range(5):
        with BlockingClient.connect(address) as client:
            assert client.topics() == []
    assert [thread.name for thread in threading.enumerate()].count("tidelog-client") == 1


def test_a_program_prints_nothing_after_its_last_client_is_closed(address: str) -> None:
    """Runs in a process of its own: in this one the node's channels and server keep gRPC's poller alive."""
    program = (
        "import sys\n"
        "from grpc_api.sdk.blocking import BlockingClient\n"
        "for _ in range(30):\n"
        "    with BlockingClient.connect(sys.argv[1]) as client:\n"
        "        client.topics()\n"
        "    del client\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, address], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_missing_node_is_reported_in_time() -> None:
    with (
        pytest.raises(LeaderNotAvailable, match=r"no node answers at 127\.0\.0\.1:1 \(.*: start one, or name"),
        BlockingClient.connect("127.0.0.1:1", timeout_s=0.2),
    ):
        raise AssertionError("nobody listens there")
