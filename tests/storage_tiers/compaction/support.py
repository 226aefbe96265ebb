"""Cleans a hot log in this process, as the broker and its cleaner do together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from storage_tiers.compaction.batches import CleaningRules
from storage_tiers.compaction.cleaning_inputs import cleaning_of, last_records
from storage_tiers.compaction.rewriter import Rewriter, offset_map
from storage_tiers.files import Files, OsFiles
from storage_tiers.hot.log import HotLog
from storage_tiers.hot.swap import RewrittenSegment
from storage_tiers.records.batch import headers
from storage_tiers.records.builder import NewRecord, build_batch
from storage_tiers.records.codecs import Codec
from storage_tiers.records.decoder import Record, decode
from storage_tiers.types import AbortedTransaction
from tests.storage_tiers.hot.support import START_MS, append, read_all

#: Later than every record and every delete horizon of a test.
LATER_MS = START_MS + 10**9
KEY = bytes(range(16))


def batch(
    *pairs: tuple[str | None, str | None],
    codec: Codec = Codec.NONE,
    producer: tuple[int, int, int] | None = None,
    transactional: bool = False,
    timestamps: Sequence[int] | None = None,
) -> bytes:
    """A batch of (key, value) records; `producer` is (id, epoch, base sequence)."""
    stamps = timestamps or [START_MS + index for index in range(len(pairs))]
    records = [
        NewRecord(None if key is None else key.encode(), None if value is None else value.encode(), timestamp=stamp)
        for (key, value), stamp in zip(pairs, stamps, strict=True)
    ]
    if producer is None:
        return build_batch(records, codec=codec)
    return build_batch(
        records,
        codec=codec,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        transactional=transactional,
    )


def write(log: HotLog, *batches: bytes, epoch: int = 1) -> None:
    for each in batches:
        append(log, each, epoch=epoch)


def closed(log: HotLog) -> None:
    """Closes the newest segment and makes everything durable."""
    log.roll()
    log.flush()


def clean(
    log: HotLog,
    *,
    dirty_start: int = 0,
    now_ms: int = START_MS,
    delete_retention_ms: int = 0,
    drops_below: int = 1 << 62,
    fences: Sequence[int] = (),
    most_keys: int = 1000,
    files: Files | None = None,
) -> int:
    """Cleans the closed segments; returns the offset that the cleaning reached."""
    begin = cleaning_of(log, dirty_start=dirty_start, end=log.active_start_offset, fences=fences)
    assert begin is not None
    cleaning = begin()
    keys = offset_map(most_keys, 1 << 20, 0.5, KEY)
    rewriter = Rewriter(files or OsFiles(), cleaning, keys)
    reached = rewriter.read_keys()
    rules = CleaningRules(
        now_ms,
        delete_retention_ms,
        reached - 1,
        drops_below,
        last_records(log.end.producers.producers.items(), reached),
    )
    for new in rewriter.rewrite(rules):
        if new is not None:
            assert swap_in(log, new)
    return reached


def swap_in(log: HotLog, new: RewrittenSegment) -> bool:
    swap = log.swapping.begin(new)
    if swap is None:
        return False
    swap.prepare()
    if not log.swapping.finish(swap, new):
        return False
    swap.commit()
    return True


def records(log: HotLog, start: int | None = None, aborted: Iterable[AbortedTransaction] = ()) -> list[Record]:
    return list(decode(read_all(log, start), aborted=tuple(aborted)))


def pairs(log: HotLog) -> list[tuple[int, str | None, str | None]]:
    """(offset, key, value) of each record."""
    return [
        (
            each.offset,
            None if each.key is None else each.key.decode(),
            None if each.value is None else each.value.decode(),
        )
        for each in records(log)
    ]


def table(log: HotLog) -> Mapping[bytes, bytes]:
    """The newest value of each key, as a reader of committed records keeps it."""
    found: dict[bytes, bytes] = {}
    aborted = log.reader.aborted_transactions(log.local_start_offset, log.end_offset)
    for each in records(log, aborted=aborted):
        if each.key is None:
            continue
        if each.value is None:
            found.pop(each.key, None)
        else:
            found[each.key] = each.value
    return found


def batch_headers(log: HotLog) -> list[tuple[int, int, int]]:
    """(base offset, last offset, records) of each batch."""
    content = memoryview(read_all(log))
    return [(each.base_offset, each.last_offset, each.count) for _, each in headers(content)]


def horizons(log: HotLog) -> list[tuple[int, int]]:
    """(base offset, milliseconds from START_MS to the delete horizon) of the batches that have one."""
    found = (header for _, header in headers(read_all(log)))
    return [(each.base_offset, each.base_timestamp - START_MS) for each in found if each.delete_horizon]
