"""Keeps a note, beside a log's segments, of the log's end after it lost its newest records. The note stays until committed
offsets are lowered to that end and the transactions that lost records are ended.

After a crash the note is the only trace of the loss: the log looks complete, and may have new records. The note's first line
has the end, then the coordinators of groups that have lowered their offsets, so that these do not lower newer offsets again.
The second line has the coordinators of transactions that have ended their transactions with lost records, so that these do not
fence producers that have begun since. The third line has pairs of a coordinator of groups and the end to which it lowers
offsets, if that differs from the end in the first line (`RecoveredEnd.later_ends`).

Invariant: the note is durable before the partition accepts a record, and before its log is replaced by the bucket's. Offsets
that were committed between the loss and a crash are lowered, too, if the note did not name their coordinator before the crash.
Their groups read those records again.
"""

from __future__ import annotations

import contextlib
import logging
import os
from itertools import chain

from service.broker.partition.partition import Partition
from service.broker.partition.record_loss import RecoveredEnd
from storage_tiers import events
from storage_tiers.errors import StorageError
from storage_tiers.files import replace_file

log = logging.getLogger(__name__)

FILE_NAME = "recovered-end"


def write_recovered_end(
    partition: Partition,
    end: RecoveredEnd,
    lowered_in: frozenset[int] | None = None,
    settled_in: frozenset[int] | None = None,
) -> None:
    """Writes the note durably. Blocking. Raises StorageError if the disk refuses. A caller that writes in a thread passes both
    sets as of the last checkpoint, because those of `end` may grow before the thread begins."""
    path = _path(partition)
    lowered_in = end.lowered_in if lowered_in is None else lowered_in
    settled_in = end.settled_in if settled_in is None else settled_in
    noted = None
    with contextlib.suppress(ValueError):
        if (known := _read(path)) is not None:
            noted = known.offset, known.lowered_in, known.settled_in, known.later_ends
    if noted != (end.offset, lowered_in, settled_in, end.later_ends):
        try:
            later = chain.from_iterable(sorted(end.later_ends.items()))
            rows = [[end.offset, *sorted(lowered_in)], sorted(settled_in), *([list(later)] if end.later_ends else ())]
            lines = [" ".join(map(str, row)) + "\n" for row in rows]
            replace_file(partition.log.hot.files, path, "".join(lines).encode())
        except OSError as error:
            raise StorageError(f"cannot write {path} ({error}); free space, or repair or replace the disk") from error
    end.is_noted = end.lowered_in is lowered_in and end.settled_in is settled_in


def read_recovered_end(partition: Partition) -> RecoveredEnd | None:
    """Returns None if no loss is noted. A damaged note counts as a loss of unknown size: offsets above the log end are lowered.
    Raises StorageError if the note cannot be read."""
    path = _path(partition)
    try:
        return _read(path)
    except ValueError as error:
        events.warning(log, "recovered_end.unusable", path=path, error=error)
        return RecoveredEnd(partition.log.hot.end_offset)


def forget_recovered_end(partition: Partition) -> None:
    """Removes the note. Blocking. If it cannot be removed, the coordinators that it does not name settle the loss again after
    the next start."""
    with contextlib.suppress(OSError):
        partition.log.hot.files.unlink(_path(partition))


def _path(partition: Partition) -> str:
    return os.path.join(partition.log.hot.directory, FILE_NAME)


def _read(path: str) -> RecoveredEnd | None:
    """Raises ValueError for a damaged note, StorageError if the note cannot be read."""
    try:
        with open(path, encoding="ascii") as file:
            (offset, *lowered_in), *more = ([int(number) for number in line.split()] for line in file)
            later = more[1] if len(more) > 1 else ()
            later_ends = dict(zip(later[::2], later[1::2], strict=True))
            return RecoveredEnd(
                offset, frozenset(lowered_in), frozenset(more[0] if more else ()), later_ends=later_ends
            )
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"cannot read {path} ({error}); repair or replace the disk") from error
