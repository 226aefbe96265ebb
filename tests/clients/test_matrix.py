"""Every client reads the records of every other, with every codec, from the local disk and from the bucket.

There is one topic for each writer and codec. The records on disk, decoded by the plain decoder, equal the writer's sample
and the result of every reader.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from storage_tiers.records.batch import headers
from tests.clients.disk import KEPT, evict, log, stored
from tests.clients.readers import READERS, readers
from tests.clients.samples import CODECS, COUNT, Record, records
from tests.clients.writers import WRITERS, confluent, writers
from tests.support.clients import create
from tests.support.node import Node
from tests.support.talker import Talker

#: At its first connection, kafka-python reads its message schemas through a deprecated Python function.
pytestmark = pytest.mark.filterwarnings("ignore:read_text is deprecated", "ignore:open_text is deprecated")


def topic_of(writer: str, codec: str) -> str:
    return f"{writer}-{codec}"


TOPICS = [topic_of(writer, codec) for writer in WRITERS for codec in CODECS]


@pytest.fixture(scope="module")
def told(node: Node, java: Talker, javascript: Talker) -> dict[str, list[Record]]:
    """By topic, the records that its writer was told to write and has written."""
    admin = AdminClient({"bootstrap.servers": node.kafka})
    for created in admin.create_topics([NewTopic(topic, 1, 1, config=KEPT) for topic in TOPICS]).values():
        created.result(30)
    made = {}
    for writer, (write, sample) in writers(java, javascript).items():
        for codec in CODECS:
            write(node.kafka, topic_of(writer, codec), codec, sample)
            made[topic_of(writer, codec)] = list(sample)
    return made


@pytest.fixture(scope="module")
def on_disk(node: Node, told: dict[str, list[Record]]) -> dict[str, list[Record]]:
    return {topic: stored(node, topic) for topic in told}


@pytest.fixture(scope="module")
def evicted(node: Node, on_disk: dict[str, list[Record]]) -> Iterator[None]:
    """Evicts every topic, so that no local copy is left."""
    evict(node, list(on_disk))
    yield


def seen_by(reader: str, found: dict[str, list[Record]]) -> dict[str, list[Record]]:
    """The records as the reader shows them: kcat prints a header's value only up to its first zero byte."""
    if reader != "kcat":
        return found
    return {
        topic: [
            each._replace(headers=tuple((n, v and v.partition(b"\0")[0]) for n, v in each.headers)) for each in records
        ]
        for topic, records in found.items()
    }


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", WRITERS)
def test_records_are_on_disk_in_the_configured_codec(
    node: Node, told: dict[str, list[Record]], on_disk: dict[str, list[Record]], writer: str, codec: str
) -> None:
    topic = topic_of(writer, codec)
    assert len(told[topic]) == COUNT
    assert [each[:3] for each in on_disk[topic]] == [each[:3] for each in told[topic]]
    now = int(time.time() * 1000)
    for found, wanted in zip(on_disk[topic], told[topic], strict=True):
        assert found.timestamp == wanted.timestamp if wanted.timestamp >= 0 else now - 600_000 < found.timestamp <= now
    batches = [header for _, header in headers(log(node, topic))]
    assert {header.codec.name.lower() for header in batches} == {codec}
    assert any(header.count > 1 for header in batches)


def test_a_topic_stores_lz4_whatever_its_producers_send(node: Node) -> None:
    create(node, "stored-as-lz4", 1, {**KEPT, "compression.type": "lz4"})
    confluent(node.kafka, "stored-as-lz4", "gzip", records())
    assert {header.codec.name for _, header in headers(log(node, "stored-as-lz4"))} == {"LZ4"}
    assert stored(node, "stored-as-lz4") == list(records())


@pytest.mark.parametrize("reader", READERS)
def test_a_client_reads_the_records_of_all_producers(
    node: Node, java: Talker, on_disk: dict[str, list[Record]], reader: str
) -> None:
    assert readers(java)[reader](node.kafka, dict.fromkeys(TOPICS, (0, COUNT))) == seen_by(reader, on_disk)


@pytest.mark.usefixtures("evicted")
@pytest.mark.parametrize("reader", READERS)
def test_a_client_reads_the_segments_from_the_bucket(
    node: Node, java: Talker, on_disk: dict[str, list[Record]], reader: str
) -> None:
    assert readers(java)[reader](node.kafka, dict.fromkeys(TOPICS, (0, COUNT))) == seen_by(reader, on_disk)


@pytest.mark.usefixtures("evicted")
@pytest.mark.parametrize("reader", READERS)
def test_a_client_begins_inside_a_batch(
    node: Node, java: Talker, on_disk: dict[str, list[Record]], reader: str
) -> None:
    middle = {topic: (COUNT // 2 + place % 5, COUNT - place % 3) for place, topic in enumerate(TOPICS)}
    found = readers(java)[reader](node.kafka, middle)
    wanted = {topic: on_disk[topic][first:end] for topic, (first, end) in middle.items()}
    assert found == seen_by(reader, wanted)
