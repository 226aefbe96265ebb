"""The cleaner's kernel compared with its plain twins, a dictionary, and SipHash as its authors published it."""

from __future__ import annotations

from functools import partial
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_tiers.compaction import offset_map as kernel
from storage_tiers.errors import CorruptRecord
from storage_tiers.records.batch import HEADER_BYTES
from storage_tiers.records.builder import NewRecord, build_batch
from storage_tiers.records.decoder import decode_batch
from tests.storage_tiers.records.twins import twins_of

TWINS = twins_of(kernel)
KEY = bytes(range(16))

#: Published digests of SipHash-2-4-128 by input length: the input is the bytes 0, 1, 2 ..., the key is the bytes 0 to 15.
PUBLISHED = {
    0: "a3817f04ba25a8e66df67214c7550293",
    1: "da87c1d86b99af44347659119b22fc45",
    2: "8177228da4a45dc7fca38bdef60affe4",
    3: "9c70b60c5267a94e5f33b6b02985ed51",
}


@pytest.fixture(params=list(TWINS))
def twin(request: pytest.FixtureRequest) -> ModuleType:
    return TWINS[request.param]


def words(slots: int) -> memoryview:
    return memoryview(bytearray(slots * 24)).cast("Q")


def payload(*rows: tuple[bytes | None, bytes | None]) -> memoryview:
    records = [NewRecord(key, value, timestamp=1000 + index) for index, (key, value) in enumerate(rows)]
    return memoryview(build_batch(records))[HEADER_BYTES:]


def siphash(data: bytes, key: bytes) -> bytes:
    """SipHash-2-4-128, written from the paper."""
    mask = (1 << 64) - 1
    k0, k1 = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D ^ 0xEE, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def rotated(number: int, by: int) -> int:
        return (number << by | number >> (64 - by)) & mask

    def rounds(count: int) -> None:
        for _ in range(count):
            v[0] = (v[0] + v[1]) & mask
            v[1] = rotated(v[1], 13) ^ v[0]
            v[0] = rotated(v[0], 32)
            v[2] = (v[2] + v[3]) & mask
            v[3] = rotated(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & mask
            v[3] = rotated(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & mask
            v[1] = rotated(v[1], 17) ^ v[2]
            v[2] = rotated(v[2], 32)

    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) & 0xFF])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xEE
    rounds(4)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    rounds(4)
    second = v[0] ^ v[1] ^ v[2] ^ v[3]
    return first.to_bytes(8, "little") + second.to_bytes(8, "little")


@pytest.mark.parametrize("length", PUBLISHED)
def test_the_reference_is_siphash(length: int) -> None:
    assert siphash(bytes(range(length)), KEY).hex() == PUBLISHED[length]


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 15, 16, 63, 64, 300])
def test_a_slot_holds_the_hash_and_the_offset(twin: ModuleType, length: int) -> None:
    data, table = bytes(each & 0xFF for each in range(length)), words(5)
    assert twin.OffsetMap(table, 0.9, KEY).add(payload((data, b"v")), 1, 41, 0)
    found = [table[at : at + 3].tolist() for at in range(0, 15, 3) if table[at + 2]]
    expected = siphash(data, KEY)
    assert found == [[int.from_bytes(expected[:8], "little"), int.from_bytes(expected[8:], "little"), 42]]


keys = st.sampled_from([None, b"", b"a", b"b", b"c" * 20, b"d"])
rows = st.lists(st.tuples(keys, st.sampled_from([None, b"", b"v" * 9])), min_size=1, max_size=8)


@settings(max_examples=200, deadline=None)
@given(st.lists(rows, min_size=1, max_size=5), st.integers(0, 20), st.booleans())
def test_the_twins_agree_with_a_dictionary(
    batches: list[list[tuple[bytes | None, bytes | None]]], start: int, tombstones: bool
) -> None:
    offsets, newest = 0, {}
    placed = []
    for batch in batches:
        placed.append((offsets, batch))
        for index, (key, _) in enumerate(batch):
            if key is not None and offsets + index >= start:
                newest[key] = offsets + index
        offsets += len(batch)
    for twin in TWINS.values():
        known = twin.OffsetMap(words(16), 0.9, KEY)
        for base, batch in placed:
            assert known.add(payload(*batch), len(batch), base, start)
        assert known.count == len(newest)
        for base, batch in placed:
            kept = [
                index
                for index, (key, value) in enumerate(batch)
                if base + index > offsets - 3
                or (key is not None and base + index >= newest.get(key, -1) and (value is not None or tombstones))
            ]
            found, empty, highest, rest = known.clean(payload(*batch), len(batch), base, offsets - 3, tombstones)
            assert (found, empty) == (len(kept), sum(batch[index][1] is None for index in kept))
            assert not kept or highest == kept[-1]
            assert (rest is None) == (len(kept) == len(batch))
            if rest is not None and kept:
                original = bytes(payload(*batch))
                assert rest == b"".join(pieces(original, len(batch))[index] for index in kept)


def pieces(content: bytes, count: int) -> list[bytes]:
    """Splits the content into its records; each record's length takes one byte."""
    found, at = [], 0
    for _ in range(count):
        end = at + 1 + (content[at] >> 1)
        found.append(content[at:end])
        at = end
    return found


def test_the_map_says_when_it_is_full(twin: ModuleType) -> None:
    known = twin.OffsetMap(words(4), 0.75, KEY)
    assert (known.slots, known.limit) == (4, 3)
    rows = [(b"%d" % number, b"v") for number in range(4)]
    assert not known.add(payload(*rows), 4, 0, 0)
    assert known.count == 3
    assert known.add(payload(*rows[:3]), 3, 10, 0), "keys that it has need no room"
    with pytest.raises(ValueError, match="no room"):
        twin.OffsetMap(words(1), 0.9, KEY)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_the_twins_refuse_the_same_bytes(data: st.DataObject) -> None:
    content = bytearray(payload((b"a", b"v" * 5), (b"b", None), (None, b"x")))
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(1, len(content))) :]
    assert len({answers(twin.OffsetMap(words(8), 0.9, KEY), content) for twin in TWINS.values()}) == 1


def answers(known: kernel.OffsetMap, content: bytearray) -> tuple[str, str]:
    """The results of `add` and `clean` as text: the value that each returns, or the error that it raises."""
    said = []
    for call in (partial(known.add, content, 3, 5, 0), partial(known.clean, content, 3, 5, 6, True)):
        try:
            said.append(str(call()))
        except CorruptRecord as error:
            said.append(str(error))
    return said[0], said[1]


def test_records_are_read_as_the_decoder_reads_them() -> None:
    whole = build_batch([NewRecord(b"k", b"v", (("h", b"x"),), timestamp=5), NewRecord(b"k", b"w", timestamp=9)])
    known = kernel.OffsetMap(words(4), 0.9, KEY)
    body = memoryview(whole)[HEADER_BYTES:]
    known.add(body, 2, 0, 0)
    assert known.clean(body, 2, 0, 1, True)[0] == len([each for each in decode_batch(whole) if each.value == b"w"])
