"""The log cleaner: a topic of 1 KiB records is written, then becomes a compacted one, and the files show when it is clean.

What stays is known: the newest record of each key among the closed segments. Both brokers look for work every 100 ms, and have
their defaults otherwise (one cleaner thread, a dedupe buffer of 128 MiB, no throttle). The topic is not tiered. The time
includes the swap of the files; those that a broker keeps for a while after it has replaced them do not count.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

from kio.schema.incremental_alter_configs.v1 import request as alter_request
from kio.schema.incremental_alter_configs.v1 import response as alter_response
from kio.static.primitive import i8

from benchmarks import load
from benchmarks.brokers import Broker, Tidelog
from benchmarks.table import JUDGED, Table
from storage_tiers.records.builder import build_written_batch
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
#: Of what stays by records: batches keep their headers.
SLACK = 1.15

ROW = "compaction of 1 KiB records, a tenth stays"


def one_round(broker: Broker, tag: str, share: float, table: Table) -> Iterator[tuple[str, str, float | None]]:
    """Yields (row, unit, value) for one broker. `share` shrinks the log, for a first look."""
    with load.topic_for(broker.address, f"compacted-{tag}") as topic:
        directory = broker.partition_dir(topic)
        if directory is None:
            yield ROW, "MB/s", None
            yield f"{ROW}: broker processor", "s/GB", None
            return
        _alter(broker.address, topic, {"segment.bytes": str(SEGMENT_BYTES), "remote.storage.enable": "false"})
        fill(broker.address, topic, int(WRITTEN_BYTES * share), int(KEYS * share))
        os.sync()
        dirty = sum(_closed(directory))
        most = int(KEYS * share * (KEY_BYTES + VALUE_BYTES) * SLACK)
        used = broker.processor_seconds()
        began = time.perf_counter()
        _alter(broker.address, topic, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"})
        peak = 0.0
        while not _is_clean(directory, most):
            if time.perf_counter() > began + LIMIT_S:
                raise load.LoadFailed(f"{directory} has {sum(_closed(directory))} closed bytes after {LIMIT_S:g} s")
            if isinstance(broker, Tidelog):
                peak = max(peak, broker.children_megabytes())
            time.sleep(0.02)
        seconds = time.perf_counter() - began
        yield ROW, "MB/s", dirty / seconds / 1e6
        now = broker.processor_seconds()
        yield f"{ROW}: broker processor", "s/GB", None if used is None or now is None else (now - used) / (dirty / 1e9)
        if isinstance(broker, Tidelog):
            table.add(JUDGED, f"{ROW}: peak memory of the cleaner", "MB", peak)
            table.add("dedupe buffer", f"{ROW}: peak memory of the cleaner", "MB", DEDUPE_BYTES / 1e6)


def fill(address: str, topic: str, wanted: int, keys: int) -> None:
    """Writes at least so many bytes of batches, five in flight; each record has one of the keys."""
    chance, value, c = random.Random(7), os.urandom(VALUE_BYTES), load.Connection(address)
    written = in_flight = 0
    while written < wanted:
        writer = RecordWriter()
        for _ in range(RECORDS):
            writer.append(b"%012d" % chance.randrange(keys), value, NO_HEADERS, int(time.time() * 1000))
        batch = build_written_batch(writer)
        c.send(load.produce_frame(topic, batch))
        written += len(batch)
        in_flight += 1
        if in_flight == 5:
            load.base_offset(c.receive())
            in_flight -= 1
    for _ in range(in_flight):
        load.base_offset(c.receive())
    c.close()


def _closed(directory: Path) -> list[int]:
    """Bytes of the segments but the newest."""
    return [path.stat().st_size for path in sorted(directory.glob("*.log"))[:-1]]


def _is_clean(directory: Path, most: int) -> bool:
    try:
        return sum(_closed(directory)) <= most and not [*directory.glob("*.cleaned"), *directory.glob("*.swap")]
    except FileNotFoundError:  # replaced since it was listed
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
