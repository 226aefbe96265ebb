"""Coordinator records against records that Kafka wrote, and against arbitrary bytes.

`kafka_logs` holds the segments of `__consumer_offsets` and `__transaction_state` of an Apache Kafka 4.2.1 that served a static
member of librdkafka, two transactions of librdkafka (one of which commits offsets), commits and the deletion of a group
without members, Java's transactional producer (`transaction.version` 2), and a Java consumer with each group protocol.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.coordination import group_records, transaction_records
from service.coordination.commit_fields import encode_offset_key
from service.coordination.group_records import (
    NO_TOPIC_ID,
    CommittedOffset,
    GroupKey,
    GroupMetadata,
    OffsetKey,
    UnknownKey,
)
from service.coordination.transaction_records import TopicPartitions, TransactionStatus, TransactionValue
from storage_tiers.errors import CorruptRecord
from storage_tiers.records.decoder import Record, decode
from storage_tiers.types import TopicId
from tests.service.coordination.whole_values import decode_group, decode_value, encode_group

LOGS = Path(__file__).parent / "kafka_logs"


def records(name: str) -> Iterator[Record]:
    yield from decode((LOGS / f"{name}.log").read_bytes())


def test_kafkas_records_of_groups_are_read_and_written_byte_for_byte() -> None:
    kinds: Counter[str] = Counter()
    for record in records("consumer_offsets"):
        assert record.key is not None
        key = group_records.decode_key(record.key)
        if isinstance(key, UnknownKey):
            kinds["newer protocol"] += 1
            continue
        assert group_records.encode_key(key) == record.key
        if record.value is None:
            kinds["tombstone"] += 1
        elif isinstance(key, GroupKey):
            kinds["group"] += 1
            assert encode_group(decode_group(record.value)) == record.value
        else:
            kinds["offset"] += 1
            assert group_records.encode_offset(group_records.decode_offset(record.value)) == record.value
    assert kinds == {"group": 5, "offset": 8, "tombstone": 2, "newer protocol": 9}


def test_kafkas_records_of_groups_have_the_values_that_its_own_tool_prints() -> None:
    found = [(group_records.decode_key(r.key), r.value) for r in records("consumer_offsets") if r.key is not None]
    billing = [decode_group(value) for key, value in found if key == GroupKey("billing") and value]
    assert billing[0] == GroupMetadata("", 0, None, None, billing[0].state_timestamp, ())
    (member,) = billing[1].members
    assert (billing[1].protocol_type, billing[1].generation, billing[1].protocol) == ("consumer", 1, "range")
    assert (billing[1].leader, member.group_instance_id, member.client_id) == (member.member_id, "billing-1", "reader")
    assert (member.client_host, member.rebalance_timeout, member.session_timeout) == ("/127.0.0.1", 300_000, 45_000)
    assert b"orders" in member.subscription
    assert b"orders" in member.assignment
    first = next(group_records.decode_offset(v) for k, v in found if k == OffsetKey("billing", "orders", 0) and v)
    assert first == CommittedOffset(5, -1, "first half\0", first.commit_timestamp)
    modern = next(group_records.decode_offset(v) for k, v in found if k == OffsetKey("modern", "orders", 0) and v)
    assert modern.topic_id == TopicId.parse("Cy911GWUT-Om-2pilHS1jg")


def test_kafkas_records_of_transactions_are_read_and_written_byte_for_byte() -> None:
    seen: dict[str, list[TransactionValue]] = {}
    for record in records("transaction_state"):
        assert record.key is not None
        assert record.value is not None
        transactional_id = transaction_records.decode_key(record.key)
        assert transactional_id is not None
        value = decode_value(record.value)
        assert transaction_records.encode_key(transactional_id) == record.key
        assert transaction_records.encode_value(value) == record.value
        seen.setdefault(transactional_id, []).append(value)
    status = TransactionStatus
    assert [value.status for value in seen["copier"]] == [
        *(status.EMPTY, status.ONGOING, status.ONGOING, status.PREPARE_COMMIT, status.COMPLETE_COMMIT),
        *(status.ONGOING, status.PREPARE_ABORT, status.COMPLETE_ABORT),
    ]
    assert seen["copier"][0].partitions is None
    assert seen["copier"][2].partitions == (
        TopicPartitions("__consumer_offsets", (0,)),
        TopicPartitions("orders", (0,)),
    )
    assert [value.producer_epoch for value in seen["perf"][:6]] == [0, 0, 1, 1, 1, 2]
    assert {value.client_version for value in seen["perf"][1:]} == {2}


OLDER_OFFSETS = {
    0: ("0000 0000000000000007 0001 61 0000000000000009", CommittedOffset(7, -1, "a", 9)),
    1: ("0001 0000000000000007 0001 61 0000000000000009 000000000000000b", CommittedOffset(7, -1, "a", 9, 11)),
    2: ("0002 0000000000000007 0001 61 0000000000000009", CommittedOffset(7, -1, "a", 9)),
    3: ("0003 0000000000000007 00000005 0001 61 0000000000000009", CommittedOffset(7, 5, "a", 9)),
}


@pytest.mark.parametrize("version", OLDER_OFFSETS)
def test_offsets_of_older_versions_are_read(version: int) -> None:
    data, value = OLDER_OFFSETS[version]
    assert group_records.decode_offset(bytes.fromhex(data)) == value


def test_an_offset_with_an_expiry_of_its_own_is_written_as_version_1() -> None:
    data, value = OLDER_OFFSETS[1]
    assert group_records.encode_offset(value) == bytes.fromhex(data)


_MEMBER = "0001 6d {instance} 0001 63 0001 68 {rebalance} 00002710 00000001 73 00000001 61"
OLDER_GROUPS = {
    0: ("0000 0001 70 00000002 0001 72 0001 6d 00000001", _MEMBER.format(instance="", rebalance=""), -1, None, 10_000),
    1: (
        "0001 0001 70 00000002 0001 72 0001 6d 00000001",
        _MEMBER.format(instance="", rebalance="00000005"),
        -1,
        None,
        5,
    ),
    2: (
        "0002 0001 70 00000002 0001 72 0001 6d 0000000000000008 00000001",
        _MEMBER.format(instance="", rebalance="00000005"),
        *(8, None, 5),
    ),
    3: (
        "0003 0001 70 00000002 0001 72 0001 6d 0000000000000008 00000001",
        _MEMBER.format(instance="0001 69", rebalance="00000005"),
        *(8, "i", 5),
    ),
    4: (
        "0004 02 70 00000002 02 72 02 6d 0000000000000008 02",
        "02 6d 02 69 02 63 02 68 00000005 00002710 02 73 02 61 00 00",
        *(8, "i", 5),
    ),
}


@pytest.mark.parametrize("version", OLDER_GROUPS)
def test_groups_of_all_versions_are_read(version: int) -> None:
    head, member, timestamp, instance, rebalance = OLDER_GROUPS[version]
    group = decode_group(bytes.fromhex(head + member))
    assert (group.protocol_type, group.generation, group.protocol, group.leader) == ("p", 2, "r", "m")
    assert group.state_timestamp == timestamp
    assert group.members == (group_records.MemberMetadata("m", instance, "c", "h", rebalance, 10_000, b"s", b"a"),)


def test_a_transaction_of_version_0_and_all_tagged_fields_of_version_1_are_read() -> None:
    old = bytes.fromhex("0000 0000000000000001 0002 00000003 01 00000001 0001 74 00000001 00000004")
    old += bytes.fromhex("0000000000000005 0000000000000006")
    value = TransactionValue(1, 2, 3, TransactionStatus.ONGOING, (TopicPartitions("t", (4,)),), 5, 6)
    assert decode_value(old) == value
    whole = value._replace(previous_producer_id=7, next_producer_id=8, next_producer_epoch=9, client_version=2)
    assert decode_value(transaction_records.encode_value(whole)) == whole


def test_a_committed_offsets_key_from_before_kafka_0_9_is_read() -> None:
    assert group_records.decode_key(bytes.fromhex("0000 0001 67 0001 74 00000003")) == OffsetKey("g", "t", 3)


DECODERS: tuple[Callable[[bytes], object], ...] = (
    group_records.decode_key,
    group_records.decode_offset,
    decode_group,
    transaction_records.decode_key,
    decode_value,
)


@pytest.mark.parametrize("decoder", DECODERS)
@given(st.one_of(st.binary(max_size=60), st.tuples(st.integers(0, 4), st.binary(max_size=60))))
def test_arbitrary_bytes_are_values_or_corrupt(
    decoder: Callable[[bytes], object], data: bytes | tuple[int, bytes]
) -> None:
    if isinstance(data, tuple):
        data = data[0].to_bytes(2, "big") + data[1]
    try:
        decoder(data)
    except CorruptRecord as error:
        assert f"of {len(data)} bytes" in str(error)


def _whole() -> Iterator[tuple[Callable[[bytes], object], bytes]]:
    for record in records("consumer_offsets"):
        assert record.key is not None
        key = group_records.decode_key(record.key)
        if isinstance(key, UnknownKey):
            continue
        yield group_records.decode_key, record.key
        if record.value is not None:
            is_group = isinstance(key, GroupKey)
            yield decode_group if is_group else group_records.decode_offset, record.value
    for record in records("transaction_state"):
        yield transaction_records.decode_key, record.key or b""
        yield decode_value, record.value or b""


def test_a_record_that_is_cut_or_continued_is_corrupt() -> None:
    for decoder, data in _whole():
        for end in range(len(data)):
            with pytest.raises(CorruptRecord):
                decoder(data[:end])
        with pytest.raises(CorruptRecord):
            decoder(data + b"\0")


def _outcome(decoder: Callable[[bytes], object], data: bytes) -> object:
    try:
        return decoder(data)
    except CorruptRecord as error:
        return str(error)


@given(st.data())
def test_the_short_decoders_of_offsets_agree_with_the_long_ones(data: st.DataObject) -> None:
    """They agree on damaged bytes, too."""
    value = CommittedOffset(
        data.draw(st.integers(0, 2**63 - 1)),
        data.draw(st.integers(-1, 9)),
        data.draw(st.text(max_size=3) | st.text("x", min_size=124, max_size=130)),
        data.draw(st.integers(-1, 2**63 - 1)),
        data.draw(st.sampled_from((-1, 9))),
        data.draw(st.sampled_from((NO_TOPIC_ID, TopicId(bytes(range(16)))))),
    )
    key = encode_offset_key(data.draw(st.text(max_size=3)), data.draw(st.text(max_size=3)), 7)
    short_ways = (
        (group_records.decode_key, "_offset_key", key),
        (group_records.decode_offset, "_short_offset", group_records.encode_offset(value)),
    )
    for decoder, short_way, whole in short_ways:
        changed = bytearray(whole)
        for _ in range(data.draw(st.integers(0, 2))):
            changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(
                st.sampled_from((0, 1, 2, 4, 0x7F, 0x80, 0xFF))
            )
        found = _outcome(decoder, bytes(changed))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(group_records, short_way, lambda _: None)
            assert _outcome(decoder, bytes(changed)) == found


def test_a_key_with_a_name_longer_than_kafkas_strings_is_corrupt() -> None:
    """Its length has the sign bit set."""
    key = b"\0\1" + (40_000).to_bytes(2, "big") + bytes(40_000) + b"\0\1t" + bytes(4)
    with pytest.raises(CorruptRecord):
        group_records.decode_key(key)


def test_most_offsets_take_the_short_decoders() -> None:
    key = encode_offset_key("group", "topic", 7)
    assert group_records._offset_key(key) == OffsetKey("group", "topic", 7)
    value = CommittedOffset(5, -1, "host-1", 9)
    assert group_records._short_offset(group_records.encode_offset(value)) == value


def test_versions_and_states_that_do_not_exist_are_named() -> None:
    for decoder, data, said in (
        (group_records.decode_offset, "0005", "its version is 5"),
        (decode_group, "0005", "its version is 5"),
        (decode_value, "0002", "its version is 2"),
        (decode_value, "0001 0000000000000001 0002 00000003 08", "its status is 8"),
    ):
        with pytest.raises(CorruptRecord, match=said):
            decoder(bytes.fromhex(data))


def test_a_record_of_another_type_names_no_transactional_id() -> None:
    assert transaction_records.decode_key(bytes.fromhex("0001 0001 67")) is None


def test_a_count_beyond_the_bytes_is_refused_before_it_is_believed() -> None:
    with pytest.raises(CorruptRecord, match="an array has 2147483647 items"):
        decode_group(bytes.fromhex("0000 0000 00000001 0000 0000 7fffffff"))


@given(
    st.builds(
        CommittedOffset,
        *(st.integers(0, 2**63 - 1), st.integers(-1, 2**31 - 1), st.text(max_size=50), st.integers(-1, 2**63 - 1)),
        st.just(-1),
        st.binary(min_size=16, max_size=16).map(TopicId),
    )
)
def test_every_offset_comes_back(value: CommittedOffset) -> None:
    assert group_records.decode_offset(group_records.encode_offset(value)) == value


def test_the_topic_id_of_zeros_is_left_out_as_in_kafka() -> None:
    data = group_records.encode_offset(CommittedOffset(1, 2, "", 3, topic_id=NO_TOPIC_ID))
    assert data.endswith(bytes([0]))
    assert group_records.decode_offset(data).topic_id == NO_TOPIC_ID
