"""Measures how fast one core decodes records into columns: 100-byte records in batches of 16 KiB, the default of producers.

There is a row for each codec. The columns `plain` and `copy` show the plain decoder and a memory copy, on the same bytes. The
three take turns. Rates are per second of processor time, so that other load on the machine matters little.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from benchmarks.table import Table
from storage_tiers.records.batch import Codec, assign
from storage_tiers.records.builder import NewRecord, build_batch
from storage_tiers.records.columns import WANTED, ColumnDecoder
from storage_tiers.records.decoder import decode

VALUE_BYTES = 100
BATCH_RECORDS = 150
#: Bytes that a reader fetches at a time.
RUN_BYTES = 4 << 20
LEAST_SECONDS = 0.2
_EVERYTHING = sum(WANTED.values())


def run_of(codec: Codec) -> tuple[bytes, int]:
    """Returns about 4 MiB of batches, and the number of their records. Half of each value is random, the other half repeats."""
    half = VALUE_BYTES // 2
    batches = [
        build_batch(
            [
                NewRecord(None, os.urandom(half) + b"a" * half, timestamp=1_700_000_000_000 + at)
                for at in range(BATCH_RECORDS)
            ],
            codec=codec,
        )
        for _ in range(8)
    ]
    log, count = bytearray(), 0
    while len(log) < RUN_BYTES:
        start, batch = len(log), batches[count % len(batches)]
        log += batch
        assign(log, start, base_offset=count * BATCH_RECORDS, leader_epoch=0)
        count += 1
    return bytes(log), count * BATCH_RECORDS


def _columns(log: bytes) -> int:
    decoder = ColumnDecoder(_EVERYTHING)
    return sum(batch.rows for batch in decoder.add(log)) + sum(batch.rows for batch in decoder.finish())


def _plain(log: bytes) -> int:
    return sum(1 for _ in decode(log))


def _rate(work: Callable[[], object], records: int) -> float:
    """Returns millions of records per second of this thread's processor time, from the fastest of several calls. Other
    processes that use the core or its caches can only make a call slower."""
    work()
    quickest, spent = float("inf"), 0.0
    while spent < LEAST_SECONDS:
        began = time.thread_time()
        work()
        taken = time.thread_time() - began
        quickest, spent = min(quickest, taken), spent + taken
    return records / quickest / 1e6


def measure(table: Table, *, rounds: int) -> None:
    runs = {codec: run_of(codec) for codec in Codec}
    for _ in range(rounds):
        for codec, (log, records) in runs.items():
            row = f"decode 100 B records, {codec.name.lower()}"
            table.add("tidelog", row, "M/s a core", _rate(lambda log=log: _columns(log), records))  # type: ignore[misc]
            table.add("plain", row, "M/s a core", _rate(lambda log=log: _plain(log), records))  # type: ignore[misc]
            table.add("copy", row, "M/s a core", _rate(lambda log=log: bytearray(log), records))  # type: ignore[misc]
