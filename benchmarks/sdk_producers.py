"""The part `sdk`: records per second that one process produces with acks=all, 100 B each.

It compares three producers on the same node: the SDK's asyncio one, the SDK's blocking one, and confluent-kafka's. Each has
its own defaults except for the shared settings: idempotence, acks=all, a linger of 5 ms. Each runs in its own process, on a
topic of one partition. The first record is not measured. The time of the others is measured from their first send until all are
acknowledged.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.table import Table
from tests.support.node import Node

RECORDS = 500_000
VALUE_BYTES = 100

#: The programs. Each prints the seconds that it took. `sys.argv` has the address, the topic, the number of records, and the
#: bytes of a value.
_ASYNC = """
import asyncio, sys, time
from grpc_api.sdk.client import Client
async def main(address, topic, count, size):
    value = bytes(size)
    async with Client.connect(address) as client:
        await client.create_topic(topic, partitions=1)
        async with client.producer() as producer:
            await (await producer.send(topic, value))
            began = time.perf_counter()
            sent = [await producer.send(topic, value) for _ in range(count)]
            await producer.flush()
            taken = time.perf_counter() - began
            assert [future.result().offset for future in sent] == list(range(1, count + 1))
            print(taken)
asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
"""
_BLOCKING = """
import sys, time
from grpc_api.sdk.blocking import BlockingClient
address, topic, count, value = sys.argv[1], sys.argv[2], int(sys.argv[3]), bytes(int(sys.argv[4]))
with BlockingClient.connect(address) as client:
    client.create_topic(topic, partitions=1)
    with client.producer() as producer:
        producer.send(topic, value).result()
        began = time.perf_counter()
        sent = [producer.send(topic, value) for _ in range(count)]
        producer.flush()
        taken = time.perf_counter() - began
        assert [future.result(0).offset for future in sent] == list(range(1, count + 1))
        print(taken)
"""
_CONFLUENT = """
import sys, time
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
address, topic, count, value = sys.argv[1], sys.argv[2], int(sys.argv[3]), bytes(int(sys.argv[4]))
settings = {"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 5}
admin = AdminClient(settings)
admin.create_topics([NewTopic(topic, 1)])[topic].result()
producer, offsets = Producer(settings), []
def done(error, message):
    assert error is None, error
    offsets.append(message.offset())
def send(count):
    for _ in range(count):
        while True:
            try:
                producer.produce(topic, value, on_delivery=done)
                break
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    producer.flush()
send(1)
began = time.perf_counter()
send(count)
taken = time.perf_counter() - began
assert offsets == list(range(count + 1))
print(taken)
"""
ASYNC_ROW = "SDK producer with asyncio, 100 B"
BLOCKING_ROW = "SDK producer without asyncio, 100 B"


def measure(table: Table, directory: Path, *, rounds: int) -> None:
    node = Node(directory / "node", store=f"file://{directory}/store")
    node.start()
    try:
        for number in range(rounds):
            for kind, program, address in (
                ("async", _ASYNC, node.grpc),
                ("blocking", _BLOCKING, node.grpc),
                ("confluent", _CONFLUENT, node.kafka),
            ):
                rate = RECORDS / _seconds(program, address, f"{kind}-{number}")
                if kind == "confluent":
                    table.add("confluent-kafka", ASYNC_ROW, "records/s", rate)
                    table.add("confluent-kafka", BLOCKING_ROW, "records/s", rate)
                else:
                    table.add("tidelog", ASYNC_ROW if kind == "async" else BLOCKING_ROW, "records/s", rate)
    finally:
        node.stop()


def _seconds(program: str, address: str, topic: str) -> float:
    arguments = [sys.executable, "-c", program, address, topic, str(RECORDS), str(VALUE_BYTES)]
    return float(subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True, timeout=300).stdout)
