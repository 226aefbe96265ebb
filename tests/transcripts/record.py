"""Records the transcripts beside this file: `python -m tests.transcripts.record [client ...]`.

Each client creates a topic, writes with every codec that it has, reads the topic from the beginning, and sends the
requests of its admin tools. Only a few frames that are equal but for the correlation id are kept, because polling
repeats itself thousands of times.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.support import kafka_jars
from tests.support.node import Node
from tests.support.recording_proxy import RecordingProxy
from tests.transcripts.files import Frame, split, write

TOPIC = "flights"
RECORDS = 40
#: Most frames kept of one API and version from one client.
KEPT = 25


def confluent(address: str) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, OffsetSpec

    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(TOPIC, 3, 1, config={"retention.ms": "-1"})])[TOPIC].result(30)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        settings = {"bootstrap.servers": address, "compression.type": codec, "enable.idempotence": codec != "none"}
        producer = Producer(settings)
        for number in range(RECORDS):
            producer.produce(TOPIC, b"value %d " % number * 5, b"key %d" % number, headers=[("h", b"x")])
        producer.flush(30)
    consumer = Consumer({"bootstrap.servers": address, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(3)])
    consumer.consume(5 * RECORDS, timeout=20)
    consumer.offsets_for_times([TopicPartition(TOPIC, 0, 1)], timeout=20)
    consumer.close()
    admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, TOPIC)])
    admin.create_partitions([NewPartitions(TOPIC, 4)])[TOPIC].result(30)
    admin.describe_cluster().result(30)
    admin.list_offsets({TopicPartition(TOPIC, 0): OffsetSpec.latest()})[TopicPartition(TOPIC, 0)].result(30)
    admin.delete_records([TopicPartition(TOPIC, 0, 1)])[TopicPartition(TOPIC, 0)].result(30)
    admin.delete_topics([TOPIC])[TOPIC].result(30)


def kafka_python(address: str) -> None:
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.admin import NewTopic

    admin = KafkaAdminClient(bootstrap_servers=address)
    admin.create_topics([NewTopic(TOPIC, 2, 1)])
    for codec in (None, "gzip"):
        producer = KafkaProducer(bootstrap_servers=address, acks="all", compression_type=codec)
        for number in range(RECORDS):
            producer.send(TOPIC, b"value %d " % number * 5, b"key").get(30)
        producer.close()
    consumer = KafkaConsumer(bootstrap_servers=address, consumer_timeout_ms=3000, enable_auto_commit=False)
    consumer.assign([TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)])
    consumer.seek_to_beginning()
    for _ in zip(consumer, range(2 * RECORDS), strict=False):
        pass
    consumer.close()
    admin.describe_topics([TOPIC])
    admin.delete_topics([TOPIC])
    admin.close()


def aiokafka(address: str) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    async def run() -> None:
        for codec in (None, "gzip", "snappy", "lz4", "zstd"):
            async with AIOKafkaProducer(
                bootstrap_servers=address, enable_idempotence=True, compression_type=codec
            ) as producer:
                for number in range(RECORDS):
                    await producer.send(TOPIC, b"value %d " % number * 5, b"key")
        async with AIOKafkaConsumer(bootstrap_servers=address) as consumer:
            consumer.assign([TopicPartition(TOPIC, 0)])
            await consumer.seek_to_beginning()
            for _ in range(5 * RECORDS):
                await asyncio.wait_for(consumer.getone(), 30)

    asyncio.run(run())


def kcat(address: str) -> None:
    lines = b"".join(b"key\tvalue %d\n" % number for number in range(RECORDS))
    write_ = ["kcat", "-b", address, "-P", "-t", TOPIC, "-K", "\t", "-z", "gzip"]
    subprocess.run(write_, input=lines, check=True, timeout=60)
    read_ = ["kcat", "-b", address, "-C", "-t", TOPIC, "-p", "0", "-o", "beginning", "-c", str(RECORDS), "-q"]
    subprocess.run(read_, check=True, stdout=subprocess.DEVNULL, timeout=60)
    subprocess.run(["kcat", "-b", address, "-L"], check=True, stdout=subprocess.DEVNULL, timeout=60)


def java(address: str) -> None:
    bootstrap = ("--bootstrap-server", address)
    topic = (*bootstrap, "--topic", TOPIC)
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder) / "records.json"
        records.write_text(f'{{"partitions": [{{"topic": "{TOPIC}", "partition": 0, "offset": 3}}]}}')
        topics = Path(folder) / "topics.json"
        topics.write_text(f'{{"topics": [{{"topic": "{TOPIC}"}}], "version": 1}}')
        tools = [
            ("TopicCommand", *topic, "--create", "--partitions", "3"),
            ("ProducerPerformance", "--topic", TOPIC, "--num-records", str(RECORDS), "--record-size", "100",
             "--throughput", "-1", "--command-property", f"bootstrap.servers={address}", "compression.type=zstd"),
            ("VerifiableProducer", *topic, "--max-messages", str(RECORDS)),
            ("consumer.ConsoleConsumer", *topic, "--partition", "0", "--offset", "earliest", "--timeout-ms", "12000",
             "--command-property", "enable.auto.commit=false"),
            ("TopicCommand", *topic, "--describe"),
            ("GetOffsetShell", *topic),
            ("DeleteRecordsCommand", *bootstrap, "--offset-json-file", str(records)),
            ("LogDirsCommand", *bootstrap, "--describe"),
            ("MetadataQuorumCommand", *bootstrap, "describe", "--status"),
            ("FeatureCommand", *bootstrap, "describe"),
            ("LeaderElectionCommand", *bootstrap, "--election-type", "preferred", "--all-topic-partitions"),
            ("reassign.ReassignPartitionsCommand", *bootstrap, "--list"),
            ("reassign.ReassignPartitionsCommand", *bootstrap, "--generate", "--broker-list", "1",
             "--topics-to-move-json-file", str(topics)),
            ("TransactionsCommand", *bootstrap, "describe-producers", "--topic", TOPIC, "--partition", "0"),
            ("ClusterTool", "cluster-id", *bootstrap),
            ("TopicCommand", *topic, "--alter", "--partitions", "4"),
            ("TopicCommand", *topic, "--delete"),
        ]  # fmt: skip
        for name, *arguments in tools:
            print(name, *arguments)
            print(kafka_jars.run_tool(f"org.apache.kafka.tools.{name}", *arguments))


CLIENTS: dict[str, Callable[[str], None]] = {
    "confluent": confluent,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
    "kcat": kcat,
    "java": java,
}


def record(client: str, folder: Path) -> Path:
    with (
        RecordingProxy() as proxy,
        Node(folder, flags=["--advertised-listeners", f"PLAINTEXT://{proxy.address}"]) as node,
    ):
        proxy.forward_to(node.kafka)
        CLIENTS[client](proxy.address)
        sent = [bytes(each) for each in proxy.sent]
    kept: list[Frame] = []
    times: Counter[tuple[int, int]] = Counter()
    bodies: set[bytes] = set()
    for connection, each in enumerate(sent):
        for data in split(each):
            frame = Frame(connection, data)
            body = data[:8] + data[12:]
            times[frame.api_key, frame.version] += 1
            if body not in bodies and times[frame.api_key, frame.version] <= KEPT:
                bodies.add(body)
                kept.append(frame)
    print(client, dict(sorted(times.items())))
    return write(client, kept)


def main() -> None:
    for client in sys.argv[1:] or CLIENTS:
        with tempfile.TemporaryDirectory() as folder:
            path = record(client, Path(folder))
        print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
