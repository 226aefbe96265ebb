"""A grown heap is trimmed, and its free memory returns to the system."""

from __future__ import annotations

import sys

import pytest

from service.process.memory import GROWN_BYTES, LONGEST_PAUSE_TICKS, HeapTrimmer, resident_bytes, trim_heap


async def test_trims_become_rare_while_memory_is_in_use_and_new_growth_is_trimmed_at_once() -> None:
    size, trims = 100 << 20, 0

    def trim() -> None:
        nonlocal trims
        trims += 1

    trimmer = HeapTrimmer(lambda: size, trim)
    await trimmer.tick()
    assert trims == 0
    size += GROWN_BYTES + 1
    for _ in range(1000):
        await trimmer.tick()
    assert 6 < trims < 30
    before, size = trims, size + GROWN_BYTES + 1
    await trimmer.tick()
    assert trims == before + 1


async def test_memory_freed_later_is_returned_too() -> None:
    size, in_use = 100 << 20, 500 << 20

    def trim() -> None:
        nonlocal size
        size = max(in_use, 100 << 20)

    trimmer = HeapTrimmer(lambda: size, trim)
    size = 600 << 20
    await trimmer.tick()
    assert size == in_use
    in_use = 0
    for _ in range(LONGEST_PAUSE_TICKS):
        await trimmer.tick()
    assert size == 100 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_free_memory_is_returned() -> None:
    trim_heap()  # otherwise freed blocks would be reused, and nothing would grow
    before = resident_bytes()
    blocks = [bytearray(b"x" * (100 << 10)) for _ in range(1000)]
    grown = resident_bytes()
    kept = blocks[::100]  # kept on the heap between the freed blocks
    del blocks
    trim_heap()
    assert grown - before > 80 << 20
    assert resident_bytes() - before < 30 << 20
    assert kept
