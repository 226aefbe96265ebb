"""A fetch through the contract, its files given back on every path, its bytes put into messages.

Invariant: nobody waits for memory that a caller who reads no further holds. The less room there is, the smaller are the
next answers, down to LEAST_ANSWER_BYTES, or a batch: so many bytes each further call costs beyond ANSWERS_BYTES.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from grpc_api.contract.log import Fetch, Fetched, Log
from grpc_api.messages.errors import detail_of
from grpc_api.messages.log import aborted_message
from grpc_api.proto import log_pb2 as pb
from grpc_api.servicers.slices import read_slices
from storage_tiers.errors import StorageError

#: Records of one answer: half of what a message may have, so that a large batch at its end still fits.
MAX_FETCH_BYTES = 32 << 20
#: Records of all answers between their reading and their caller's taking them. gRPC holds them three times over meanwhile.
ANSWERS_BYTES = 64 << 20
LEAST_ANSWER_BYTES = 64 << 10


class AnswerRoom:
    """What the answers of all calls hold."""

    def __init__(self) -> None:
        self.held_bytes = 0

    def share(self) -> int:
        """What the next answer may hold: half of what is left."""
        return max(LEAST_ANSWER_BYTES, min(MAX_FETCH_BYTES, (ANSWERS_BYTES - self.held_bytes) // 2))


def bounded(fetch: Fetch, most: int = MAX_FETCH_BYTES) -> Fetch:
    """As much as one message may hold; nobody waits for more."""
    most = min(fetch.max_bytes, most)
    return fetch._replace(max_bytes=most, min_bytes=min(fetch.min_bytes, most))


@asynccontextmanager
async def fetched(log: Log, fetch: Fetch, room: AnswerRoom) -> AsyncIterator[list[Fetched]]:
    """The answers, whose bytes count as held until the block ends. Giving up gives the read up. Who is done with their
    files before says so with `release`."""
    answers = list(await _answers(log, bounded(fetch, room.share())))
    held = _size(answers)
    try:
        share = room.share()
        if held > share:  # others were answered while this one waited
            release(answers)
            room.held_bytes += share
            try:
                answers += await _answers(log, bounded(fetch, share)._replace(max_wait_ms=0))
            finally:
                room.held_bytes -= share
            held = _size(answers)
        room.held_bytes += held
        try:
            yield answers
        finally:
            room.held_bytes -= held
    finally:
        release(answers)


def release(answers: list[Fetched]) -> None:
    """Gives the files back, once."""
    while answers:
        answers.pop().release_all()


def _size(answers: Sequence[Fetched]) -> int:
    return sum(each.size for each in answers)


async def _answers(log: Log, fetch: Fetch) -> Sequence[Fetched]:
    ready = log.fetch(fetch)
    if not isinstance(ready, asyncio.Future):
        return ready
    try:
        return await ready
    except asyncio.CancelledError:
        # Answered in the turn in which the caller left: nobody else would give the files back.
        if ready.done() and not ready.cancelled() and ready.exception() is None:
            for each in ready.result():
                each.release_all()
        raise


async def records_of(answer: Fetched) -> bytes:
    return await read_slices(answer.slices) if answer.slices else b""


def message_of(index: int, answer: Fetched, records: bytes) -> pb.FetchedPartition:
    """One partition's part; `index` is its place in the request."""
    if answer.error is not None:
        return pb.FetchedPartition(index=index, error=detail_of(answer.error))
    diverging = answer.diverging
    return pb.FetchedPartition(
        index=index,
        high_watermark=answer.high_watermark,
        last_stable_offset=answer.last_stable_offset,
        log_start_offset=answer.log_start_offset,
        records=records,
        aborted=aborted_message(answer.aborted),
        diverging=None if diverging is None else pb.EpochEnd(leader_epoch=diverging[0], end_offset=diverging[1]),
    )


async def whole_message(index: int, answer: Fetched) -> pb.FetchedPartition:
    """The same with its records; a disk that does not give them is this partition's error alone."""
    try:
        return message_of(index, answer, await records_of(answer))
    except StorageError as error:
        return pb.FetchedPartition(index=index, error=detail_of(error))
