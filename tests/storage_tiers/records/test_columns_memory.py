"""The compiled decoder reads no byte outside its buffer, which lies between inaccessible guard pages."""

from __future__ import annotations

import subprocess
import sys

import pytest

from storage_tiers.records import column_walk

#: A signal kills this program on a stray access. The program places each payload once right before a guard page, once right
#: after one.
DECODE_BETWEEN_GUARDS = """
import ctypes, mmap, random
from array import array
from storage_tiers.records import column_walk
from storage_tiers.records.column_buffers import Columns
from storage_tiers.records.column_walk import END, FULL, Walk
from tests.storage_tiers.records import vectors
from tests.storage_tiers.records.test_fuzz import mutated

PAGE = mmap.PAGESIZE
memory = mmap.mmap(-1, 3 * PAGE)
base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
protect = ctypes.CDLL(None, use_errno=True).mprotect
for guard in (base, base + 2 * PAGE):
    assert protect(ctypes.c_void_p(guard), ctypes.c_size_t(PAGE), 0) == 0
view = memoryview(memory)
nothing = array("q")
rows = 0

def decode(raw, verify):
    global rows
    for start in (PAGE, 2 * PAGE - len(raw)):
        room = view[start : start + len(raw)]
        room[:] = raw
        columns = Columns(63, 2, 1 << 20)
        walk = Walk(room, 0, 1 << 62, nothing, verify)
        while walk.decode(columns) == FULL:
            rows += columns.take()[0]

chance = random.Random(1)
batches = [vectors.BY_CODEC[0], vectors.IDEMPOTENT, vectors.COMMIT]
for size in range(1, 130):
    for byte in (0, 1, 0x7F, 0x80, 0xFF):
        decode(bytes([byte]) * size, False)
for _ in range(9000):
    raw = mutated(chance.choice(batches), chance)
    decode(raw[: chance.randrange(1, len(raw) + 1)], False)
    decode(raw, chance.random() < 0.5)
assert rows > 1000
print("inside")
"""


def test_the_decoder_stays_inside_its_buffer() -> None:
    if (column_walk.__file__ or "").endswith(".py"):
        pytest.skip("plain Python cannot stray")
    run = subprocess.run([sys.executable, "-c", DECODE_BETWEEN_GUARDS], capture_output=True, text=True)
    assert (run.returncode, run.stdout.strip()) == (0, "inside"), run.stderr[-2000:]
