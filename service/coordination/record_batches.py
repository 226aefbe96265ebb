"""Packs a coordinator's records into batches, each with as many as fit, or with the records of one transaction. Pure."""

from __future__ import annotations

from grpc_api.contract.transactions import ProducerIdAndEpoch
from service.coordination.outcome import CoordinatorRecord
from storage_tiers.records.batch import TRANSACTIONAL_MASK
from storage_tiers.records.builder import build_written_batch
from storage_tiers.records.codecs import Codec
from storage_tiers.records.record_writer import NO_HEADERS, RecordWriter, encode_plain_batch
from storage_tiers.types import NO_PRODUCER_ID

#: Bytes of a batch without its records, and most bytes of a record without its key and value.
_BATCH_OVERHEAD, _RECORD_OVERHEAD = 61, 32


#: Most bytes of a batch that gzip compresses, because compression runs on the event loop and takes about a millisecond for
#: them. The other codecs are ten times as fast.
MOST_GZIP_BYTES = 32 << 10
# Looking up an enum member takes 0.1 µs in Python 3.11.
_UNCOMPRESSED = Codec.NONE


def record_bytes(key_bytes: int, value_bytes: int) -> int:
    """Most bytes of a batch of one record."""
    return _BATCH_OVERHEAD + _RECORD_OVERHEAD + key_bytes + value_bytes


def in_batches(records: list[CoordinatorRecord], max_bytes: int) -> list[list[CoordinatorRecord]]:
    """Divides the records into consecutive lists that fit one batch each. A record alone in its batch may be too large; then
    the log refuses it."""
    batches: list[list[CoordinatorRecord]] = []
    room = 0
    for record in records:
        size = len(record.key) + len(record.value or b"") + _RECORD_OVERHEAD
        if size > room:
            batches.append([])
            room = max_bytes - _BATCH_OVERHEAD
        batches[-1].append(record)
        room -= size
    return batches


def encode_batch(
    records: list[CoordinatorRecord], unix_ms: int, producer: ProducerIdAndEpoch | None, codec: Codec = Codec.NONE
) -> bytes:
    """One batch of these records, written at `unix_ms`, in the producer's transaction if a producer is given. The batch stays
    uncompressed if compression would enlarge it, or if the codec is gzip and the batch exceeds MOST_GZIP_BYTES."""
    if producer is None:
        plain = encode_plain_batch(records, unix_ms, 0, NO_PRODUCER_ID, -1)
    else:
        plain = encode_plain_batch(records, unix_ms, TRANSACTIONAL_MASK, producer.id, producer.epoch)
    if codec is _UNCOMPRESSED or (codec is Codec.GZIP and len(plain) > MOST_GZIP_BYTES):
        return plain
    compressed = _compressed(records, unix_ms, producer, codec)
    return compressed if len(compressed) < len(plain) else plain


def _compressed(
    records: list[CoordinatorRecord], unix_ms: int, producer: ProducerIdAndEpoch | None, codec: Codec
) -> bytes:
    writer = RecordWriter()
    for key, value in records:
        writer.append(key, value, NO_HEADERS, unix_ms)
    if producer is None:
        return build_written_batch(writer, codec=codec)
    return build_written_batch(
        writer, codec=codec, producer_id=producer.id, producer_epoch=producer.epoch, transactional=True
    )
