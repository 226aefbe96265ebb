"""Frames of the metadata log: their layout, and what a crash or damage leaves of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.metadata.frames import HEADER_BYTES, Frame, decode, encode, scan
from storage_tiers.errors import MetadataCorrupt

FRAMES = [Frame(3, 7, b"first"), Frame(3, 8, b""), Frame(5, 9, b"third of a later term")]
LOG = b"".join(map(encode, FRAMES))
STARTS = [0, HEADER_BYTES + 5, 2 * HEADER_BYTES + 5]


def test_a_frame_is_laid_out_as_documented() -> None:
    assert (
        encode(Frame(2, 258, b"ab")).hex() == "00000002" + "ef0ca638" + "0000000000000002" + "0000000000000102" + "6162"
    )


def test_frames_come_back_as_written() -> None:
    assert scan(LOG, 7, "log") == (FRAMES, len(LOG))
    assert decode(LOG, STARTS[2]) == FRAMES[2]


@pytest.mark.parametrize("cut", range(len(LOG)))
def test_a_log_cut_anywhere_ends_with_its_last_whole_frame(cut: int) -> None:
    whole = sum(start + HEADER_BYTES + len(frame.payload) <= cut for start, frame in zip(STARTS, FRAMES, strict=True))
    found = scan(LOG[:cut], 7, "log")
    assert list(found.frames) == FRAMES[:whole]
    assert found.end == [*STARTS, len(LOG)][whole]


@pytest.mark.parametrize("position", range(len(LOG)))
def test_a_flipped_byte_is_damage_before_the_last_frame_and_a_torn_end_in_it(position: int) -> None:
    damaged = LOG[:position] + bytes([LOG[position] ^ 0x40]) + LOG[position + 1 :]
    if position >= STARTS[2]:
        assert list(scan(damaged, 7, "log").frames) == FRAMES[:2]
        return
    with pytest.raises(MetadataCorrupt) as error:
        scan(damaged, 7, "the-file")
    assert "the-file" in str(error.value)
    assert f"at byte {STARTS[position >= STARTS[1]]}" in str(error.value)
    assert "Restore the file" in str(error.value)


@given(tail=st.binary(max_size=300))
def test_bytes_after_the_last_frame_are_cut_after_a_power_loss(tail: bytes) -> None:
    assert scan(LOG + tail, 7, "log") == (FRAMES, len(LOG))


def test_megabytes_of_zeros_are_a_torn_end() -> None:
    assert scan(LOG + bytes(32 << 20), 7, "log") == (FRAMES, len(LOG))


def test_a_lost_frame_shows_in_the_index() -> None:
    with pytest.raises(MetadataCorrupt, match="entry 9 of term 5 where entry 8 of term 3"):
        scan(encode(FRAMES[0]) + encode(FRAMES[2]), 7, "log")


def test_a_term_never_falls() -> None:
    with pytest.raises(MetadataCorrupt, match="entry 8 of term 2 where entry 8 of term 3"):
        scan(encode(FRAMES[0]) + encode(Frame(2, 8, b"")), 7, "log")


def test_a_length_beyond_the_file_is_not_a_frame() -> None:
    assert decode(b"\xff" * 64) is None
