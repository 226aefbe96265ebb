"""Codecs: round trips, bounds on decompression, damage."""

from __future__ import annotations

import gzip
import struct
import subprocess
import sys

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_tiers.errors import CorruptRecord, RecordTooLarge
from storage_tiers.records.codecs import Codec, compress, decompress, inflation_bound
from tests.storage_tiers.records.strategies import codecs

COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]


@settings(deadline=None, max_examples=60)
@given(codecs, st.binary(max_size=2000), st.integers(1, 100))
def test_compressed_data_is_decompressed_as_it_was(codec: Codec, seed: bytes, times: int) -> None:
    payload = seed * times
    assert decompress(codec, compress(codec, payload), max_bytes=len(payload)) == payload


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 300_000, 1_000_000])
def test_the_bound_is_exact(codec: Codec, size: int) -> None:
    payload = bytes(size)
    packed = compress(codec, payload)
    assert decompress(codec, packed, max_bytes=size) == payload
    with pytest.raises(RecordTooLarge, match=f"beyond {size - 1} bytes"):
        decompress(codec, packed, max_bytes=size - 1)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_damage_is_corruption_or_other_bytes(codec: Codec) -> None:
    packed = bytearray(compress(codec, b"0123456789abcdef" * 500))
    for position in range(len(packed)):
        damaged = bytearray(packed)
        damaged[position] ^= 0x55
        try:
            decompress(codec, damaged, max_bytes=1 << 20)
        except (CorruptRecord, RecordTooLarge):
            continue


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_cut_payload_is_corrupt(codec: Codec) -> None:
    packed = compress(codec, b"0123456789abcdef" * 5000)
    for end in (0, 1, 3, 7, len(packed) // 2, len(packed) - 1):
        with pytest.raises(CorruptRecord):
            decompress(codec, packed[:end], max_bytes=1 << 20)


def test_snappy_is_written_in_xerial_blocks_of_32_kib() -> None:
    packed = compress(Codec.SNAPPY, b"x" * 70_000)
    assert packed.startswith(b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1))
    at, sizes = 16, []
    while at < len(packed):
        (length,) = struct.unpack_from(">i", packed, at)
        sizes.append(len(cramjam.snappy.decompress_raw(packed[at + 4 : at + 4 + length])))
        at += 4 + length
    assert sizes == [32768, 32768, 4464]


def test_snappy_without_framing_and_in_several_streams_is_read() -> None:
    raw = bytes(cramjam.snappy.compress_raw(b"hello" * 100))
    assert decompress(Codec.SNAPPY, raw, max_bytes=500) == b"hello" * 100
    streams = compress(Codec.SNAPPY, b"one") + compress(Codec.SNAPPY, b"two")
    assert bytes(decompress(Codec.SNAPPY, streams, max_bytes=6)) == b"onetwo"


def test_snappy_in_blocks_of_a_byte_is_refused() -> None:
    """Each block takes a step in Python, so a batch of 1 MB in such blocks would take a third of a second."""
    block = bytes(cramjam.snappy.compress_raw(b"x"))
    framed = struct.pack(">i", len(block)) + block
    some, many = compress(Codec.SNAPPY, b"one") + framed * 900, compress(Codec.SNAPPY, b"one") + framed * 100_000
    assert len(decompress(Codec.SNAPPY, some, max_bytes=1 << 20)) == 903
    with pytest.raises(RecordTooLarge, match="larger blocks"):
        decompress(Codec.SNAPPY, many, max_bytes=1 << 20)


def test_lz4_is_written_in_independent_blocks_without_checksum() -> None:
    flags = compress(Codec.LZ4, b"x" * 100)[4]
    assert flags & 0x20  # block independence, without which Java refuses the frame
    assert not flags & 0x04  # content checksum


def test_several_gzip_members_are_read() -> None:
    members = gzip.compress(b"one") + gzip.compress(b"two")
    assert bytes(decompress(Codec.GZIP, members, max_bytes=6)) == b"onetwo"


def test_the_bound_grows_with_the_batch() -> None:
    assert inflation_bound(100) == 64 << 20
    assert inflation_bound(100 << 20) == 1600 << 20


def _zstd_bomb_with_a_wide_window() -> bytes:
    """1 GiB of zeros in 32 KiB: blocks that repeat one byte, in a frame that asks for a window of 128 MiB."""
    block = struct.pack("<I", (128 << 10) << 3 | 1 << 1)[:3] + b"\x00"
    last = struct.pack("<I", 1 << 3 | 1 << 1 | 1)[:3] + b"\x00"
    return b"\x28\xb5\x2f\xfd\x00" + bytes([(27 - 10) << 3]) + block * 8191 + last


def _bombs() -> dict[str, tuple[Codec, bytes]]:
    zeros = bytes(64 << 20)
    return {
        "gzip": (Codec.GZIP, compress(Codec.GZIP, zeros, level=1) * 16),
        "snappy": (Codec.SNAPPY, compress(Codec.SNAPPY, zeros) * 16),
        "snappy that lies": (Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + b"\x00x"),
        "lz4": (Codec.LZ4, compress(Codec.LZ4, zeros) * 16),
        "zstd": (Codec.ZSTD, compress(Codec.ZSTD, zeros) * 16),
        "zstd with a wide window": (Codec.ZSTD, _zstd_bomb_with_a_wide_window()),
    }


DETONATE = """
import sys
from storage_tiers.errors import RecordTooLarge
from storage_tiers.records.codecs import Codec, decompress

def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) << 10

codec, bound = Codec(int(sys.argv[1])), int(sys.argv[2])
bomb = sys.stdin.buffer.read()
before = peak()
try:
    decompress(codec, bomb, max_bytes=bound)
except RecordTooLarge:
    print(peak() - before)
"""


@pytest.mark.parametrize(
    ("name", "buffers"),
    [
        ("gzip", 1),
        ("snappy", 1),
        ("snappy that lies", 1),
        ("lz4", 1),
        ("zstd", 1),
        ("zstd with a wide window", 2),  # the decoder holds the output and its window
    ],
)
def test_a_bomb_gets_an_error_not_memory(name: str, buffers: int) -> None:
    codec, bomb = _bombs()[name]
    bound = 8 << 20
    run = subprocess.run(
        [sys.executable, "-c", DETONATE, str(int(codec)), str(bound)], input=bomb, capture_output=True, check=True
    )
    grown = int(run.stdout)
    assert grown < buffers * bound + (6 << 20), f"{name}: {len(bomb)} bytes took {grown} bytes of memory"
