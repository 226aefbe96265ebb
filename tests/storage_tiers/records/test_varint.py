"""Varints in Kafka's encoding, and those that are cut short or too wide."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_tiers.errors import CorruptRecord
from storage_tiers.records.varint import decode_varint, decode_varlong, encode


@pytest.mark.parametrize(
    ("number", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
        (2**63 - 1, "feffffffffffffffff01"),
        (-(2**63), "ffffffffffffffffff01"),
    ],
)
def test_known_encodings_are_written_and_read(number: int, encoded: str) -> None:
    assert encode(number).hex() == encoded
    assert decode_varlong(bytes.fromhex(encoded), 0) == (number, len(encoded) // 2)


@given(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=3))
def test_a_written_number_is_read_back(number: int, around: bytes) -> None:
    encoded = around + encode(number) + around
    end = len(encoded) - len(around)
    assert decode_varlong(encoded, len(around)) == (number, end)
    if -(2**31) <= number < 2**31:
        assert decode_varint(encoded, len(around)) == (number, end)


@pytest.mark.parametrize("encoded", ["8000", "80808000"])
def test_a_longer_encoding_than_needed_is_read(encoded: str) -> None:
    assert decode_varint(bytes.fromhex(encoded), 0) == (0, len(encoded) // 2)


@pytest.mark.parametrize("encoded", ["", "80", "ffffffff", "ffffffff1f", "8080808080", "808080808000"])
def test_a_varint_that_is_cut_or_too_wide_is_refused(encoded: str) -> None:
    with pytest.raises(CorruptRecord):
        decode_varint(bytes.fromhex(encoded), 0)


@pytest.mark.parametrize("encoded", ["", "80" * 9, "ff" * 9 + "02", "80" * 10 + "00"])
def test_a_varlong_that_is_cut_or_too_wide_is_refused(encoded: str) -> None:
    with pytest.raises(CorruptRecord):
        decode_varlong(bytes.fromhex(encoded), 0)


def test_a_number_beyond_64_bits_is_not_encoded() -> None:
    with pytest.raises(ValueError, match="64 bits"):
        encode(2**63)
