"""The native encoder of committed offsets against the readers and writers of all records."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpc_api.contract.groups import PartitionCommit, TopicCommit
from service.coordination import commit_fields
from service.coordination.group_records import CommittedOffset, OffsetKey, decode_key, decode_offset, encode_offset
from service.coordination.record_fields import FieldWriter
from storage_tiers.types import TopicId, TopicPartition
from tests.storage_tiers.records.twins import source_of, twins_of

TWINS = twins_of(commit_fields)
names = st.text(st.characters(codec="utf-8"), max_size=60)
int32, int64 = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)


def test_this_run_has_a_compiled_encoder() -> None:
    if (commit_fields.__file__ or "").endswith(".py"):
        pytest.skip("the encoder is not compiled here: run hatch_build.py")
    assert [module.__file__ == source_of(commit_fields) for module in TWINS.values()] == [False, True, True]


@settings(deadline=None)
@given(names, names, int32)
def test_keys_are_those_of_the_field_writer(group: str, topic: str, partition: int) -> None:
    writer = FieldWriter(1)
    writer.string(group)
    writer.string(topic)
    writer.int32(partition)
    for module in TWINS.values():
        key = module.encode_offset_key(group, topic, partition)
        assert (key, decode_key(key)) == (bytes(writer.data), OffsetKey(group, topic, partition))


@settings(deadline=None)
@given(int64, int32, st.text(st.characters(codec="utf-8"), max_size=140), int64)
def test_values_are_those_of_the_field_writer(offset: int, epoch: int, metadata: str, timestamp: int) -> None:
    writer = FieldWriter(4, flexible=True)
    writer.int64(offset)
    writer.int32(epoch)
    writer.string(metadata)
    writer.int64(timestamp)
    writer.tagged({})
    for module in TWINS.values():
        value = module.encode_short_offset(offset, epoch, metadata, timestamp)
        if len(metadata.encode()) > 126:
            assert value is None
        else:
            assert value == bytes(writer.data)
            assert decode_offset(value) == CommittedOffset(offset, epoch, metadata, timestamp)


@pytest.mark.parametrize("module", TWINS.values(), ids=TWINS)
def test_names_that_no_key_holds_are_refused(module: ModuleType) -> None:
    long = "ä" * 16_383
    assert decode_key(module.encode_offset_key(long, "t", 0)) == OffsetKey(long, "t", 0)
    for group, topic in ((long + "ää", "t"), ("g", long + "ää")):
        with pytest.raises(ValueError, match="32770 bytes does not fit"):
            module.encode_offset_key(group, topic, 0)


commits = st.builds(
    PartitionCommit,
    st.integers(0, (1 << 31) - 1),
    int64,
    int32,
    st.none() | st.text(st.characters(codec="utf-8"), max_size=40),
)


@settings(deadline=None)
@given(
    group=names,
    topics=st.lists(st.builds(TopicCommit, names, st.lists(commits, max_size=4), st.none()), max_size=3),
    record_number=st.integers(0, 1 << 62),
    now_ms=int64,
)
def test_a_whole_commit_is_its_keys_and_values_one_by_one(
    group: str, topics: list[TopicCommit], record_number: int, now_ms: int
) -> None:
    rows = [(topic.topic, each) for topic in topics for each in topic.partitions]
    for module in TWINS.values():
        encoded = module.encode_commit(group, topics, record_number, now_ms, 4_096, TopicPartition)
        if any(len((each.metadata or "").encode()) > 126 for _, each in rows):
            assert encoded is None
            continue
        records, changes, answered = encoded
        assert [decode_key(each.key) for each in records] == [OffsetKey(group, at, each.partition) for at, each in rows]
        assert [each.value for each in records] == [
            encode_offset(CommittedOffset(each.offset, each.leader_epoch, each.metadata or "", now_ms))
            for _, each in rows
        ]
        assert changes == [
            (
                group,
                TopicPartition(at, each.partition),
                (record_number + place).to_bytes(8, "big") + records[place].value,
                record_number + place,
            )
            for place, (at, each) in enumerate(rows)
        ]
        assert answered == [
            (topic.topic, [(each.partition, None) for each in topic.partitions], None) for topic in topics
        ]


@pytest.mark.parametrize("module", TWINS.values(), ids=TWINS)
@pytest.mark.parametrize(
    ("topic", "most_metadata"),
    [
        (TopicCommit("t", [PartitionCommit(0, 1)], TopicId(bytes(16))), 4_096),
        (TopicCommit("t", [PartitionCommit(0, 1, -1, "ok"), PartitionCommit(1, 1, -1, "m" * 127)]), 4_096),
        (TopicCommit("t", [PartitionCommit(0, 1, -1, "ok"), PartitionCommit(1, 1, -1, "four")]), 3),
    ],
    ids=["a topic id", "long metadata", "metadata above the limit"],
)
def test_an_uncommon_commit_is_left_to_the_caller(module: ModuleType, topic: TopicCommit, most_metadata: int) -> None:
    assert module.encode_commit("g", [topic], 0, 0, most_metadata, TopicPartition) is None
    common = topic._replace(topic_id=None, partitions=topic.partitions[:1])
    assert module.encode_commit("g", [common], 0, 0, most_metadata, TopicPartition) is not None


@settings(deadline=None)
@given(st.text(max_size=300))
def test_hash_codes_are_javas(name: str) -> None:
    """The absolute value of the hash code of the UTF-16 code units, lone surrogates included."""
    raw = name.encode("utf-16-be", "surrogatepass")
    code = 0
    for at in range(0, len(raw), 2):
        code = (31 * code + int.from_bytes(raw[at : at + 2], "big")) % (1 << 32)
    signed = code - (1 << 32 if code >> 31 else 0)
    assert {module.hash_code(name) for module in TWINS.values()} == {0 if signed == -1 << 31 else abs(signed)}
