"""Options: accepted values, and the message of each refusal."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pytest

from pyspark_tidelog.options import KNOWN, Bound, OptionError, ReadOptions, parse_options

LEAST = {"store": "/bucket", "topics": "a,b"}


def parse(**options: str) -> ReadOptions:
    return parse_options({**LEAST, **{name.replace("__", "."): value for name, value in options.items()}})


def refusal(**options: str) -> str:
    with pytest.raises(OptionError) as refused:
        parse(**options)
    return str(refused.value)


def test_options_have_their_defaults() -> None:
    assert parse() == ReadOptions("/bucket", ("a", "b"))
    assert parse().read_committed
    assert parse().max_bytes == 64 << 20


def test_options_have_no_case() -> None:
    found = parse_options(
        {
            "STORE": "s3://logs/live",
            "Topic": "a",
            "clusterid": "c",
            "topicId": "AAECAwQFBgcICQoLDA0ODw",
            "StartingOffsets": '{"a": {"0": 23, "1": -2}}',
            "endingTimestamp": "1700000000000",
            "includeHeaders": "TRUE",
            "isolationLevel": "read_uncommitted",
            "maxBytesPerPartition": "8m",
            "S3.Endpoint": "http://127.0.0.1:9000",
            "s3.region": "eu-central-1",
        }
    )
    assert found == ReadOptions(
        store="s3://logs/live",
        topics=("a",),
        cluster_id="c",
        topic_id="AAECAwQFBgcICQoLDA0ODw",
        starting=Bound(offsets={"a": {0: 23, 1: -2}}),
        ending=Bound(timestamp=1_700_000_000_000),
        include_headers=True,
        read_committed=False,
        max_bytes=8 << 20,
        s3_endpoint="http://127.0.0.1:9000",
        s3_region="eu-central-1",
    )


def test_a_relative_path_is_made_absolute() -> None:
    assert parse(store="bucket").store == os.path.abspath("bucket")
    assert parse(store="file:///b").store == "file:///b"


def test_spelled_out_defaults_are_defaults() -> None:
    assert parse(startingOffsets="earliest", endingOffsets="LATEST", topics=" a , b,a ,") == parse()


def test_unknown_options_are_named_with_the_known_ones() -> None:
    message = refusal(startingOffset="earliest")
    assert "'startingOffset'" in message
    assert "did you mean 'startingOffsets'" in message
    assert all(name in message for name in KNOWN)
    assert "name the topics with the option 'topics'" in refusal(subscribe="a")
    assert "with the option 'store'" in refusal(**{"kafka.bootstrap.servers": "127.0.0.1:9092"})


def test_a_path_as_an_address_gets_a_hint_to_its_option() -> None:
    assert 'option("store"' in refusal(path="/bucket")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"store": " "}, "a store is missing"),
        ({"store": "memory://x"}, "exists in one process only"),
        ({"topics": ","}, "a topic is missing"),
        ({"topics": ["a", "b"]}, "topics is ['a', 'b'], but an option is text, several names as \"a,b\""),
        ({"startingOffsets": {"a": {"0": 1}}}, "startingOffsets is {'a': {'0': 1}}, but an option is JSON text"),
        ({"topic": "a"}, "both topic and topics"),
        ({"topicId": "AAECAwQFBgcICQoLDA0ODw"}, "2 topics are read: a, b"),
        ({"startingOffsets": "latest"}, "startingOffsets is 'latest'"),
        ({"endingOffsets": "earliest"}, "endingOffsets is 'earliest'"),
        ({"startingOffsets": "5"}, "does not have the form"),
        ({"startingOffsets": "{"}, "neither earliest, latest nor JSON"),
        ({"startingOffsets": '{"a": {"0": 1}, "a": {"0": 2}}'}, "appears twice"),
        ({"startingOffsets": '{"a": {"0": 1}}'}, "must name exactly the topics that are read (a, b), not a"),
        ({"startingOffsets": '{"a": {"0": -1}, "b": {}}'}, "-1 is not a valid offset for a-0"),
        ({"endingOffsets": '{"a": {"0": -2}, "b": {}}'}, "-2 is not a valid offset for a-0"),
        ({"endingOffsets": '{"a": {"0": 1.5}, "b": {}}'}, "1.5 is not a valid offset for a-0"),
        ({"endingOffsets": '{"a": {"x": 1}, "b": {}}'}, "'x' is not a partition of a"),
        ({"endingOffsets": '{"a": 3, "b": {}}'}, "does not have the form"),
        ({"startingTimestamp": "yesterday"}, "neither milliseconds since 1970 nor a time"),
        ({"startingTimestamp": "2024-01-31T12:00:00 UTC"}, "nor a time such as 2024-01-31T12:00:00Z"),
        ({"startingTimestamp": "1", "startingOffsets": "earliest"}, "both startingOffsets and startingTimestamp"),
        ({"includeHeaders": "yes"}, "neither true nor false"),
        ({"isolationLevel": "serializable"}, "neither read_committed nor read_uncommitted"),
        ({"maxBytesPerPartition": "0"}, "not a size in bytes"),
        ({"snapshotCommit": "-1"}, "snapshotCommit does not have the form"),
        ({"snapshotCommit": "last"}, "snapshotCommit is neither a commit's number nor JSON as in"),
        ({"snapshotCommit": '{"a": {"0": -2}, "b": {}}'}, "-2 is not a valid commit for a-0"),
        ({"snapshotCommit": '{"a": {"0": 2}}'}, "must name exactly the topics that are read (a, b), not a"),
        ({"pushdown": "on"}, "pushdown is 'on', neither true nor false"),
        ({"maxBytesPerPartition": "64 parsecs"}, "not a size in bytes"),
    ],
)
def test_wrong_options_are_refused(options: Mapping[str, str], said: str) -> None:
    assert said in refusal(**options)


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("64k", 64 << 10), ("2 MB", 2 << 20), ("1g", 1 << 30), ("3G", 3 << 30)]
)
def test_sizes_are_parsed(text: str, size: int) -> None:
    assert parse(maxBytesPerPartition=text).max_bytes == size
