"""kio is imported one version at a time and without Hypothesis, and responses are built alike for all versions."""

from __future__ import annotations

import itertools
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Generator, Iterator, Sequence

import pytest

from kafka_gateway.hot_parse import Malformed
from kafka_gateway.message_reader import Endless
from kafka_gateway.messages import messages_of
from tests.kafka_gateway.kio_frames import request_frame, response


def test_a_node_imports_neither_hypothesis_nor_more_versions_than_it_answers() -> None:
    script = """
import sys
from kafka_gateway import server
from kafka_gateway.messages import messages_of
messages_of("metadata", 12)
assert "hypothesis" not in sys.modules
kio = [name for name in sys.modules if name.startswith("kio.schema.") and name.count(".") == 4]
print(sorted(name for name in kio if "header" not in name))
import hypothesis.strategies
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['kio.schema.metadata.v12.request', 'kio.schema.metadata.v12.response']"


@pytest.mark.parametrize("version", [0, 12])
def test_fields_that_a_version_does_not_have_are_dropped(version: int) -> None:
    messages = messages_of("metadata", version)
    values = {"name": "t", "topic_id": uuid.UUID(int=7), "error_code": 3, "is_internal": False, "partitions": ()}
    row = messages.make("MetadataResponseTopic", **values)
    answer = {"brokers": (), "cluster_id": "c", "controller_id": 1, "topics": (row,)}
    (topic,) = response("metadata", version, messages.respond(1, **answer)[4:]).topics
    assert (topic.name, int(topic.error_code)) == ("t", 3)
    assert getattr(topic, "topic_id", None) == (None if version == 0 else uuid.UUID(int=7))


def test_answers_carry_their_size_and_correlation_id() -> None:
    for version, tagged in ((0, False), (12, True)):
        framed = messages_of("metadata", version).respond(
            513, brokers=(), cluster_id="c", controller_id=1, topics=(), cluster_authorized_operations=0
        )
        assert int.from_bytes(framed[:4], "big") == len(framed) - 4
        assert int.from_bytes(framed[4:8], "big") == 513
        assert response("metadata", version, framed[4:]).topics == ()
        assert (framed[8] == 0 and framed[9] == 0) if tagged else framed[8:12] == bytes(4)


@pytest.mark.parametrize("version", [1, 12])
def test_every_truncation_is_malformed(version: int) -> None:
    body = request_frame("metadata", version, topics=[{"name": "topic"}])
    # Size, api key, version, correlation id, client id (and, flexible, no tags).
    start = 4 + 8 + 2 + len("test") + (1 if version >= 9 else 0)
    messages = messages_of("metadata", version)
    assert messages.read(body[start:]).topics[0].name == "topic"
    assert messages.read(body[start:] + b"more").topics[0].name == "topic"
    for end in range(start, len(body)):
        with pytest.raises(Malformed):
            messages.read(body[start:end])


def test_error_codes_at_every_depth_are_counted_and_the_code_none_is_not() -> None:
    messages = messages_of("metadata", 9)

    def partition(code: int) -> object:
        return messages.make(
            "MetadataResponsePartition", error_code=code, partition_index=0, leader_id=1, replica_nodes=(1,)
        )

    def topic(code: int, *partitions: object) -> object:
        return messages.make("MetadataResponseTopic", error_code=code, name="t", partitions=iter(partitions))

    counts: Counter[int] = Counter()
    topics = (topic(0, partition(0), partition(5)), topic(3), topic(0, partition(5)))
    answer = {"topics": (each for each in topics), "brokers": (), "cluster_id": "c"}
    for _ in messages.writing(1, answer, Endless(), counts):
        pass
    assert counts == {5: 2, 3: 1}


def test_an_answer_of_many_small_arrays_is_a_few_pieces() -> None:
    messages = messages_of("metadata", 9)
    large = messages.encoded(
        messages.make("MetadataResponsePartition", error_code=0, partition_index=n, leader_id=1, replica_nodes=(1,))
        for n in range(1_000)
    )

    def topics(count: int) -> Iterator[object]:
        for n in range(count):
            yield messages.make("MetadataResponseTopic", error_code=0, name=f"t-{n}", partitions=iter(()))
        yield messages.make("MetadataResponseTopic", error_code=0, name="large", partitions=large)

    answer = {"topics": topics(20_000), "brokers": (), "cluster_id": "c"}
    pieces, rests = through(messages.writing(1, answer, Hurried(), Counter()))
    assert [piece for piece in pieces if piece is large.data], "fields written once are not copied"
    assert len(pieces) < 20 and max(len(piece) for piece in pieces) < 128 << 10
    assert rests >= 20_000 + 20_000 // 256, "also while the pieces are joined"
    body = b"".join(pieces)
    assert int.from_bytes(body[:4], "big") == len(body) - 4
    read = response("metadata", 9, body[4:])
    assert [topic.name for topic in read.topics] == [*(f"t-{n}" for n in range(20_000)), "large"]
    assert [row.partition_index for row in read.topics[-1].partitions] == list(range(1_000))


class Hurried:
    """A turn whose time is always used up."""

    is_over = True


def through(steps: Generator[None, None, Sequence[bytes]]) -> tuple[Sequence[bytes], int]:
    """Runs the steps; returns their result and their number."""
    for rests in itertools.count():
        try:
            next(steps)
        except StopIteration as end:
            return end.value, rests
    raise AssertionError
