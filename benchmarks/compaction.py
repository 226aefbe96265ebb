"""Measures the log cleaner. A topic of 1 KiB records is written, and then its cleanup.policy is set to compact. The sizes of
its files show when it is clean.

The result is known: only the newest record of each key in the closed segments stays. Both brokers look for work every 100 ms,
and otherwise have their defaults (one cleaner thread, a dedupe buffer of 128 MiB, no throttle). The topic is not tiered. The
time includes the swap of the files. Replaced files that a broker keeps for a while are not counted. The memory of tidelog's
cleaner is measured while it cleans so many records that its offset map is as large as the dedupe buffer allows.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from kio.schema.incremental_alter_configs.v1 import request as alter_request
from kio.schema.incremental_alter_configs.v1 import response as alter_response
from kio.static.primitive import i8

from benchmarks import load
from benchmarks.brokers import Broker, Tidelog
from benchmarks.table import JUDGED, Table
from storage_tiers.records.builder import build_written_batch
from storage_tiers.records.codecs import Codec
from storage_tiers.records.record_writer import NO_HEADERS, RecordWriter

#: Records of a batch, and bytes of a key and a value.
RECORDS, KEY_BYTES, VALUE_BYTES = 16, 12, 1024
KEYS = 50_000
SEGMENT_BYTES = 32 << 20
WRITTEN_BYTES = 512 << 20
#: Brokers' settings for this part.
SETTINGS: dict[str, str | int | bool] = {"log.cleaner.backoff.ms": 100}
DEDUPE_BYTES = 128 << 20
LIMIT_S = 120.0
#: A log counts as clean once its closed segments have at most this many times the size of the records that stay. The segments
#: are larger than these records, because batches keep their headers, and a batch of few records compresses less well.
SLACK, COMPRESSED_SLACK = 1.15, 1.5
#: Each key is written twice. The offset map is sized for the number of records, which is twice SHORT_KEYS, so it takes the
#: whole dedupe buffer, and about half of its slots are used.
SHORT_KEYS, SHORT_RECORDS, SHORT_SEGMENT_BYTES = 2_700_000, 1_000, 8 << 20

ROW = "compaction of 1 KiB records, a tenth stays"
LZ4 = "compaction of 1 KiB records in lz4 batches, a tenth stays"
FULL = "compaction with a full dedupe buffer: peak memory of the cleaner"


def one_round(broker: Broker, tag: str, share: float, table: Table) -> Iterator[tuple[str, str, float | None]]:
    """Yields (row, unit, value) for one broker. A `share` below 1 makes the log smaller, for a quick run."""
    for row, codec, slack in ((ROW, Codec.NONE, SLACK), (LZ4, Codec.LZ4, COMPRESSED_SLACK)):
        yield from _large_records(broker, f"{tag}-{codec}", share, row, codec, slack)
    if isinstance(broker, Tidelog):
        table.add(JUDGED, FULL, "MB", _peak_of_a_full_map(broker, tag, share))
        table.add("dedupe buffer", FULL, "MB", DEDUPE_BYTES / 1e6)


def _large_records(
    broker: Broker, tag: str, share: float, row: str, codec: Codec, slack: float
) -> Iterator[tuple[str, str, float | None]]:
    with load.topic_for(broker.address, f"compacted-{tag}") as topic:
        directory = broker.partition_dir(topic)
        if directory is None:
            yield row, "MB/s", None
            yield f"{row}: broker processor", "s/GB", None
            return
        _alter(broker.address, topic, {"segment.bytes": str(SEGMENT_BYTES), "remote.storage.enable": "false"})
        written, records = fill(broker.address, topic, int(WRITTEN_BYTES * share), int(KEYS * share), codec)
        os.sync()
        dirty = sum(_closed(directory))
        used = broker.processor_seconds()
        began = time.perf_counter()
        _clean(broker, topic, directory, int(KEYS * share * (written / records) * slack), lambda: None)
        yield row, "MB/s", dirty / (time.perf_counter() - began) / 1e6
        now = broker.processor_seconds()
        yield f"{row}: broker processor", "s/GB", None if used is None or now is None else (now - used) / (dirty / 1e9)


def _peak_of_a_full_map(broker: Tidelog, tag: str, share: float) -> float:
    with load.topic_for(broker.address, f"short-{tag}") as topic:
        directory = broker.partition_dir(topic)
        assert directory is not None
        _alter(broker.address, topic, {"segment.bytes": str(SHORT_SEGMENT_BYTES), "remote.storage.enable": "false"})
        fill_short(broker.address, topic, max(100_000, int(SHORT_KEYS * share)))
        dirty = sum(_closed(directory))
        peak = [0.0]
        _clean(broker, topic, directory, int(dirty * 0.85), lambda: peak.append(broker.cleaner_megabytes()))
    if not max(peak):
        raise load.LoadFailed(f"no cleaner process was seen while {topic} was cleaned")
    return max(peak)


def _clean(broker: Broker, topic: str, directory: Path, most: int, meanwhile: Callable[[], None]) -> None:
    """Sets the topic's cleanup.policy to compact; returns once its closed segments have at most `most` bytes. Calls `meanwhile`
    while it waits."""
    began = time.perf_counter()
    _alter(broker.address, topic, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"})
    while not _is_clean(directory, most):
        if time.perf_counter() > began + LIMIT_S:
            raise load.LoadFailed(f"{directory} has {sum(_closed(directory))} closed bytes after {LIMIT_S:g} s")
        meanwhile()
        time.sleep(0.02)


def fill(address: str, topic: str, wanted: int, keys: int, codec: Codec = Codec.NONE) -> tuple[int, int]:
    """Writes at least `wanted` bytes of batches; returns (bytes, records). Each record's key is drawn at random from `keys`
    keys. With a codec, half of each value compresses well and the other half is random. Without one, all values are the
    same."""
    chance, same = random.Random(7), os.urandom(VALUE_BYTES)

    def record() -> tuple[bytes, bytes]:
        value = same if codec is Codec.NONE else chance.randbytes(VALUE_BYTES // 2) + bytes(VALUE_BYTES // 2)
        return b"%012d" % chance.randrange(keys), value

    def batches() -> Iterator[bytes]:
        written = 0
        while written < wanted:
            batch = _batch((record() for _ in range(RECORDS)), codec)
            written += len(batch)
            yield batch

    return _write(address, topic, batches(), RECORDS)


def fill_short(address: str, topic: str, keys: int) -> None:
    """Writes each key twice, with a value of one byte."""
    numbers = [*range(keys), *range(keys)]
    made = (
        _batch(((b"%012d" % each, b"x") for each in numbers[at : at + SHORT_RECORDS]), Codec.NONE)
        for at in range(0, len(numbers), SHORT_RECORDS)
    )
    _write(address, topic, made, SHORT_RECORDS)


def _batch(records: Iterable[tuple[bytes, bytes]], codec: Codec) -> bytes:
    writer, now_ms = RecordWriter(), int(time.time() * 1000)
    for key, value in records:
        writer.append(key, value, NO_HEADERS, now_ms)
    return build_written_batch(writer, codec=codec)


def _write(address: str, topic: str, batches: Iterable[bytes], records: int) -> tuple[int, int]:
    """Writes with five requests in flight; returns (bytes, records)."""
    c = load.Connection(address)
    written = count = in_flight = 0
    for batch in batches:
        c.send(load.produce_frame(topic, batch))
        written, count, in_flight = written + len(batch), count + records, in_flight + 1
        if in_flight == 5:
            load.base_offset(c.receive())
            in_flight -= 1
    for _ in range(in_flight):
        load.base_offset(c.receive())
    c.close()
    return written, count


def _closed(directory: Path) -> list[int]:
    """Sizes in bytes of all segments except the newest."""
    return [path.stat().st_size for path in sorted(directory.glob("*.log"))[:-1]]


def _is_clean(directory: Path, most: int) -> bool:
    try:
        return sum(_closed(directory)) <= most and not [*directory.glob("*.cleaned"), *directory.glob("*.swap")]
    except FileNotFoundError:  # a file was replaced after it was listed
        return False


def _alter(address: str, topic: str, configs: dict[str, str]) -> None:
    c = load.Connection(address)
    resource = alter_request.AlterConfigsResource(
        resource_type=i8(2),
        resource_name=topic,
        configs=tuple(
            alter_request.AlterableConfig(name=name, config_operation=i8(0), value=value)
            for name, value in configs.items()
        ),
    )
    request = alter_request.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
    answer = c.call(request, alter_response.IncrementalAlterConfigsResponse).responses[0]
    c.close()
    if int(answer.error_code):
        raise load.LoadFailed(f"{address}: alter {topic}: {answer.error_message}")
