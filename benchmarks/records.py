"""Measures single operations on record batches (checksum, validation, scan, decoding), and a memory copy of the same bytes.

    python -m benchmarks.records [--seconds 0.2]

The operations take turns. Absolute figures vary by a factor of two to four within minutes on a shared machine, so only ratios
within one run are meaningful.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

from storage_tiers.records import batch_walk, walker
from storage_tiers.records.batch import HEADER_BYTES, Codec, assign, read_header, records_payload, validate
from storage_tiers.records.builder import NewRecord, build_batch
from storage_tiers.records.checksum import crc32c
from storage_tiers.records.decoder import decode_batch

ROUNDS = 5
#: (records per batch, bytes of each record's value).
SHAPES = ((1, 100), (10, 100), (1000, 100), (10_000, 100), (1000, 1000))


def seconds_each(work: Callable[[], object], budget: float) -> float:
    """Returns the mean seconds of one call, over as many calls as fit into the budget (s)."""
    started = time.perf_counter()
    calls = 0
    while time.perf_counter() - started < budget:
        work()
        calls += 1
    return (time.perf_counter() - started) / calls


def sample(records: int, value_bytes: int, codec: Codec) -> bytes:
    """A batch whose values are half random and half repeating, so that codecs have work to do."""
    half = value_bytes // 2
    values = [os.urandom(half) + b"a" * (value_bytes - half) for _ in range(records)]
    return build_batch(
        [NewRecord(None, value, timestamp=1_700_000_000_000 + at) for at, value in enumerate(values)], codec=codec
    )


def log_of(batch: bytes) -> bytearray:
    """About 1 MiB of copies of one batch, with rising offsets."""
    copies = max(1, (1 << 20) // len(batch))
    log = bytearray(batch * copies)
    for at in range(copies):
        assign(log, at * len(batch), base_offset=at * read_header(batch).count, leader_epoch=0)
    return log


def jobs(batch: bytes) -> dict[str, Callable[[], object]]:
    header = read_header(batch)
    view = memoryview(batch)
    payload = records_payload(batch, header)
    log = log_of(batch)
    limit = len(batch)
    return {
        "memcpy": lambda: bytearray(view),
        "crc32c": lambda: crc32c(view[21:]),
        "walk": lambda: walker.check_records(payload, header.count),
        "header": lambda: read_header(batch),
        "validate, header only": lambda: validate(batch, max_bytes=limit, deep=False),
        "validate": lambda: validate(batch, max_bytes=limit),
        "scan 1 MiB of log": lambda: batch_walk.scan_batches(log, 0, len(log)),
        "recover 1 MiB of log": lambda: batch_walk.recover_scan(log, 0, 0, -1),
        "decode (plain Python)": lambda: decode_batch(batch),
    }


def measure(work: dict[str, Callable[[], object]], budget: float) -> dict[str, float]:
    """Returns the lowest mean (s) of each job. The jobs take turns, so that a slow moment affects all of them."""
    best = dict.fromkeys(work, float("inf"))
    for _ in range(ROUNDS):
        for name, job in work.items():
            best[name] = min(best[name], seconds_each(job, budget / ROUNDS))
    return best


def report(title: str, batch: bytes, budget: float) -> None:
    count = read_header(batch).count
    figures = measure(jobs(batch), budget)
    print(f"\n{title}: {len(batch):,} bytes")
    print(f"  {'':24}{'µs':>10}{'GB/s':>9}{'M records/s':>13}{'x memcpy':>10}")
    for name, seconds in figures.items():
        size = len(log_of(batch)) if "log" in name else len(batch)
        records = count * size / len(batch)
        print(
            f"  {name:24}{seconds * 1e6:10.2f}{size / seconds / 1e9:9.2f}{records / seconds / 1e6:13.2f}"
            f"{seconds / size / (figures['memcpy'] / len(batch)):10.1f}"
        )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--seconds", type=float, default=0.2, help="seconds in which each figure is measured")
    budget = arguments.parse_args().seconds
    built = "plain Python" if (walker.__file__ or "").endswith(".py") else "compiled"
    print(f"walker: {built}; header: {HEADER_BYTES} bytes a batch")
    for records, value_bytes in SHAPES:
        report(f"{records:,} records of {value_bytes} B", sample(records, value_bytes, Codec.NONE), budget)
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        report(f"1,000 records of 1000 B, {codec.name.lower()}", sample(1000, 1000, codec), budget)


if __name__ == "__main__":
    main()
