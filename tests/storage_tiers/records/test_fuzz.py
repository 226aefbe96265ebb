"""However a batch is damaged, a reader gets a LogError or valid values: no other error, and never a crash."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest

from storage_tiers.errors import LogError
from storage_tiers.records import batch as layout
from storage_tiers.records.batch import headers, read_header, validate
from storage_tiers.records.checksum import crc32c
from storage_tiers.records.decoder import decode, decode_batch, decode_control
from storage_tiers.records.lookup import first_at_or_after
from tests.storage_tiers.records import vectors

SEEDS = [*vectors.BY_CODEC.values(), vectors.IDEMPOTENT, vectors.COMMIT]
ROUNDS = 1500
MAX_INFLATED = 1 << 20
READS: tuple[Callable[[bytes], object], ...] = (
    lambda batch: list(headers(batch)),
    lambda batch: decode_batch(batch, max_bytes=MAX_INFLATED),
    lambda batch: decode_batch(batch, max_bytes=MAX_INFLATED, verify=False),
    decode_control,
    lambda batch: list(decode(batch, max_bytes=MAX_INFLATED)),
    lambda batch: first_at_or_after(batch, 1, max_bytes=MAX_INFLATED),
)


def mutated(batch: bytes, chance: random.Random) -> bytes:
    """Flips, drops or adds some bytes; mostly repairs length and CRC, so that the inner checks are reached."""
    raw = bytearray(batch)
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(layout.HEADER_BYTES if chance.random() < 0.7 else 0, len(raw))
        match chance.randrange(4):
            case 0:
                raw[at] ^= 1 << chance.randrange(8)
            case 1:
                raw[at] = chance.choice((0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF))
            case 2:
                del raw[at : at + chance.randrange(1, 4)]
            case _:
                raw[at:at] = chance.randbytes(chance.randrange(1, 4))
    if len(raw) >= layout.HEADER_BYTES and chance.random() < 0.9:
        struct.pack_into(">i", raw, layout.BATCH_LENGTH, len(raw) - layout.LENGTH_OVERHEAD)
        struct.pack_into(">I", raw, layout.CRC, crc32c(memoryview(raw)[layout.ATTRIBUTES :]))
    return bytes(raw)


@pytest.mark.parametrize("seed", range(len(SEEDS)))
def test_mutated_batches_are_refused_or_decoded_soundly(seed: int) -> None:
    chance = random.Random(seed)
    accepted = 0
    for _ in range(ROUNDS):
        batch = mutated(SEEDS[seed], chance)
        before = bytes(batch)
        for read in READS:
            try:
                read(batch)
            except LogError as error:
                assert str(error)
        try:
            header = validate(batch, max_bytes=1 << 20, max_decompressed=MAX_INFLATED)
        except LogError:
            continue
        # Every reader can read a batch that validation accepts, and finds what its header states.
        accepted += 1
        records = decode_batch(batch, max_bytes=MAX_INFLATED)
        assert [record.offset for record in records] == list(range(header.count))
        assert min(record.timestamp for record in records) == header.lowest_timestamp
        assert max(-1, *(record.timestamp for record in records)) == header.highest_timestamp
        assert batch == before
    assert accepted or read_header(SEEDS[seed]).control


def test_random_bytes_are_no_valid_batch() -> None:
    chance = random.Random(7)
    for _ in range(3000):
        raw = chance.randbytes(chance.randrange(200))
        with pytest.raises(LogError):
            validate(raw, max_bytes=1 << 20)
        try:
            list(decode(raw))
        except LogError as error:
            assert str(error)
