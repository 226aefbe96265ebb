"""Fetches through the contract: releases the files on every path and builds messages within the memory bound of answers.

Invariants: no byte of an answer is read before there is room for it, and the room is held until gRPC has sent the message.
A call that waits for room holds neither files nor bytes. The less room a connection has left, the smaller its next answer,
down to LEAST_RECORDS_BYTES or one batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from grpc_api.contract.log import Fetch, Fetched, FetchPartition, Log
from grpc_api.limits import MAX_FETCH_PARTITIONS, MAX_MESSAGE_BYTES
from grpc_api.messages.errors import detail_of
from grpc_api.messages.log import aborted_message
from grpc_api.proto import log_pb2 as pb
from grpc_api.servicers.calls import ANSWER_COPIES, CallContext
from grpc_api.servicers.slices import read_slices
from storage_tiers.errors import InvalidRequest, RecordTooLarge, StorageError

#: Bytes of records in one answer, unless a single batch has more.
MAX_FETCH_BYTES = 2 << 20
#: The most bytes of a single batch, which leave room for the other fields of the message.
MAX_BATCH_BYTES = MAX_MESSAGE_BYTES - (64 << 10)
LEAST_RECORDS_BYTES = 64 << 10
#: Upper bound of a partition's bytes in an answer besides its records.
_PART_BYTES = 256


def bounded(fetch: Fetch, most: int = MAX_FETCH_BYTES) -> Fetch:
    """The fetch, limited to what one message holds. Raises InvalidRequest for too many partitions."""
    if len(fetch.partitions) > MAX_FETCH_PARTITIONS:
        raise InvalidRequest(
            f"a fetch names at most {MAX_FETCH_PARTITIONS} partitions, not {len(fetch.partitions)}: "
            "split it into smaller requests"
        )
    most = min(fetch.max_bytes, most)
    return fetch._replace(max_bytes=most, min_bytes=min(fetch.min_bytes, most))


@asynccontextmanager
async def fetched(log: Log, fetch: Fetch, context: CallContext) -> AsyncIterator[list[Fetched]]:
    """The answers; their bytes count as held until the block ends. A cancellation cancels the read. Use `release` to release
    the files earlier."""
    room, peer = context.bounds.answers, context.peer_name
    answers = await _answers(log, bounded(fetch, _most(context)))
    held = room.try_hold(peer, _size(answers))
    try:
        if held is not None:
            yield answers
            return
        size = _size(answers)
        release(answers)
        async with room.hold(peer, size) as held:
            again = bounded(fetch, max(1, size // ANSWER_COPIES))._replace(max_wait_ms=0)
            answers += await _answers(log, again)
            held.resize(_size(answers))
            yield answers
    finally:
        release(answers)
        if held is not None:
            held.resize(0)


def _most(context: CallContext) -> int:
    """Bytes of records allowed in the connection's next answer."""
    share = context.bounds.answers.share(context.peer_name) // ANSWER_COPIES
    return max(LEAST_RECORDS_BYTES, min(MAX_FETCH_BYTES, share))


def release(answers: list[Fetched]) -> None:
    """Releases the files, once."""
    while answers:
        answers.pop().release_all()


def _size(answers: Sequence[Fetched]) -> int:
    return ANSWER_COPIES * sum(_PART_BYTES + each.size for each in answers)


async def _answers(log: Log, fetch: Fetch) -> list[Fetched]:
    ready = log.fetch(fetch)
    if not isinstance(ready, asyncio.Future):
        return _sendable(fetch, ready)
    try:
        return _sendable(fetch, await ready)
    except asyncio.CancelledError:
        # The answer came in the same turn as the cancellation: only this call can release the files.
        if ready.done() and not ready.cancelled() and ready.exception() is None:
            for each in ready.result():
                each.release_all()
        raise


def _sendable(fetch: Fetch, answers: Sequence[Fetched]) -> list[Fetched]:
    """Replaces batches that are too large for a message by errors. Only a single batch can exceed the fetch's limit."""
    return [
        answer if answer.size <= MAX_BATCH_BYTES else _too_large(wanted, answer)
        for wanted, answer in zip(fetch.partitions, answers, strict=True)
    ]


def _too_large(wanted: FetchPartition, answer: Fetched) -> Fetched:
    size = answer.size
    answer.release_all()
    return Fetched(
        RecordTooLarge(
            f"{wanted.partition}: the batch at offset {wanted.offset} has {size} bytes, and a gRPC message holds "
            f"{MAX_BATCH_BYTES}; read it with Kafka's protocol, or continue after it"
        )
    )


async def records_of(answer: Fetched) -> bytes:
    return await read_slices(answer.slices) if answer.slices else b""


def part_of(index: int, answer: Fetched) -> pb.FetchedPartition:
    """One partition's part without its records; `index` is its index in the request."""
    if answer.error is not None:
        return pb.FetchedPartition(index=index, error=detail_of(answer.error))
    diverging = answer.diverging
    return pb.FetchedPartition(
        index=index,
        high_watermark=answer.high_watermark,
        last_stable_offset=answer.last_stable_offset,
        log_start_offset=answer.log_start_offset,
        aborted=aborted_message(answer.aborted),
        diverging=None if diverging is None else pb.EpochEnd(leader_epoch=diverging[0], end_offset=diverging[1]),
    )


async def part_and_records(index: int, answer: Fetched) -> tuple[pb.FetchedPartition, bytes]:
    """The part and its records; a failing disk is an error of this partition alone."""
    try:
        records = await records_of(answer)
    except StorageError as error:
        return pb.FetchedPartition(index=index, error=detail_of(error)), b""
    return part_of(index, answer), records


_PARTITIONS_TAG = bytes((pb.FetchResponse.PARTITIONS_FIELD_NUMBER << 3 | 2,))
_RECORDS_TAG = bytes((pb.FetchedPartition.RECORDS_FIELD_NUMBER << 3 | 2,))


def size_of(answers: Sequence[Fetched]) -> int:
    """The total bytes of records."""
    return sum(each.size for each in answers)


def encoded(parts: Sequence[tuple[pb.FetchedPartition, bytes]]) -> bytes:
    """An encoded FetchResponse, built by hand: protobuf would copy every record twice more."""
    pieces: list[bytes] = []
    for part, records in parts:
        head = part.SerializeToString()
        if records:
            head += _RECORDS_TAG + _varint(len(records))
        pieces += (_PARTITIONS_TAG, _varint(len(head) + len(records)), head, records)
    return b"".join(pieces)


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
