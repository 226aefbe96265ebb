"""The compiled walker reads no byte outside its buffer, which lies between inaccessible guard pages."""

from __future__ import annotations

import subprocess
import sys

import pytest

from storage_tiers.records import walker

#: A signal kills this program on a stray access. The program places each payload once right before a guard page, once right
#: after one.
WALK_BETWEEN_GUARDS = """
import ctypes, mmap, random, struct
from storage_tiers.errors import CorruptRecord
from storage_tiers.records import batch_walk, walker
from storage_tiers.records.checksum import crc32c
from tests.storage_tiers.records import vectors
from tests.storage_tiers.records.test_fuzz import mutated

PAGE = mmap.PAGESIZE
memory = mmap.mmap(-1, 3 * PAGE)
base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
protect = ctypes.CDLL(None, use_errno=True).mprotect
for guard in (base, base + 2 * PAGE):
    assert protect(ctypes.c_void_p(guard), ctypes.c_size_t(PAGE), 0) == 0
view = memoryview(memory)

def walk(raw, count):
    for start in (PAGE, 2 * PAGE - len(raw)):
        room = view[start : start + len(raw)]
        room[:] = raw
        for last in (-1, 100):
            walker.check_records(room, count, False, last)
        for target in (-(1 << 70), 1 << 60):
            try:
                walker.find_timestamp(room, count, 0, 0, target)
            except CorruptRecord:
                pass
        for offset in (0, 1, 1 << 62):
            batch_walk.find_batch(room, 0, len(room), offset)
            batch_walk.find_batch(room, 0, len(room), offset, False)
        walker.plain_batch(room, room, True, 0, 1 << 62, 1 << 62)
        batch_walk.scan_batches(room, 0, len(room))
        batch_walk.recover_scan(room, 0, 0, -1)

chance = random.Random(1)
batches = [*vectors.BY_CODEC.values(), vectors.COMMIT]
for size in range(1, 130):
    for byte in (0, 1, 0x7F, 0x80, 0xFF):
        walk(bytes([byte]) * size, 5)
for _ in range(6000):
    raw = mutated(chance.choice(batches), chance)
    raw = raw[: chance.randrange(1, len(raw) + 1)]
    walk(raw, 3)
    if len(raw) > 61:
        struct.pack_into('>ixxxxbI', raw := bytearray(raw), 8, len(raw) - 12, 2, crc32c(raw[21:]))
        walk(raw, 3)
    walk(raw[61:] or b"x", chance.choice((1, 3, 2**31 - 1)))
print("inside")
"""


def test_the_walker_stays_inside_its_buffer() -> None:
    if (walker.__file__ or "").endswith(".py"):
        pytest.skip("plain Python cannot stray")
    run = subprocess.run([sys.executable, "-c", WALK_BETWEEN_GUARDS], capture_output=True, text=True)
    assert (run.returncode, run.stdout.strip()) == (0, "inside"), run.stderr[-2000:]
