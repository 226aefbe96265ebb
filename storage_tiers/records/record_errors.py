"""The record errors of a refused batch, as Produce responses have them from version 8 on (KIP-467).

Runs only after the native walker has refused a batch, and examines at most MAX_EXAMINED records, so a batch built to be refused
costs bounded time. Wording and codes are those of LogValidator of Kafka 4.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from storage_tiers.errors import CorruptRecord, InvalidRecord, InvalidTimestamp, LogError, RecordFault
from storage_tiers.records.batch import Buffer, read_header, records_payload
from storage_tiers.records.varint import decode_varint, decode_varlong
from storage_tiers.types import NO_TIMESTAMP, TopicPartition

#: The most records that are examined, about 10 ms of work. Later records that break a rule are not named.
MAX_EXAMINED = 5_000
#: The most records named in the error: each takes a few hundred bytes, here and in the answer. The client learns of further
#: faulty records when it sends the batch again without these.
MAX_NAMED = 100
#: The most record errors quoted in the summary.
QUOTED = 3

_INVALID_TIMESTAMPS = "One or more records have been rejected due to invalid timestamp"


def record_error(
    batch: Buffer, partition: TopicPartition, *, null_keys: bool, earliest: int, latest: int
) -> InvalidRecord | InvalidTimestamp | None:
    """The error that names each record without a key (unless `null_keys`) or with a timestamp outside
    [earliest, latest] (ms); None if no such record is found."""
    faults: list[RecordFault] = []
    timestamps = False
    try:
        for index, timestamp, has_key in _records(batch):
            if not has_key and not null_keys:
                message = f"Compacted topic cannot accept message without key in topic partition {partition}"
                faults.append(RecordFault(index, message))
            elif timestamp != NO_TIMESTAMP and not earliest <= timestamp <= latest:
                timestamps = True
                message = (
                    f"Timestamp {timestamp} of message with offset {index} is out of range. "
                    f"The timestamp should be within [{earliest}, {latest}]"
                )
                faults.append(RecordFault(index, message))
            if len(faults) == MAX_NAMED:
                break
    except LogError:
        return None  # the batch's framing is broken as well: the walker's own error describes that
    if not faults:
        return None
    return InvalidTimestamp(_INVALID_TIMESTAMPS, faults) if timestamps else InvalidRecord(_in_sum(faults), faults)


def _in_sum(faults: Sequence[RecordFault]) -> str:
    quoted = ", ".join(f"RecordError(batchIndex={index}, message='{message}')" for index, message in faults[:QUOTED])
    return (
        f"One or more records have been rejected due to {len(faults)} record errors in total, "
        f"and only showing the first three errors at most: [{quoted}]"
    )


def _records(batch: Buffer) -> Iterator[tuple[int, int, bool]]:
    """(index, timestamp, whether it has a key) of the first records."""
    header = read_header(batch)
    payload = records_payload(batch, header)
    position = 0
    for index in range(min(header.count, MAX_EXAMINED)):
        length, position = decode_varint(payload, position)
        if length < 1:
            raise CorruptRecord(f"record {index} says it has {length} bytes")
        delta, fields = decode_varlong(payload, position + 1)
        _, fields = decode_varint(payload, fields)
        key, _ = decode_varint(payload, fields)
        yield index, header.base_timestamp + delta, key >= 0
        position += length
