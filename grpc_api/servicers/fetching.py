"""A fetch through the contract, its files given back on every path, its bytes put into messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from grpc_api.contract.log import Fetch, Fetched, Log
from grpc_api.messages.errors import detail_of
from grpc_api.messages.log import aborted_message
from grpc_api.proto import log_pb2 as pb
from grpc_api.servicers.slices import read_slices
from storage_tiers.cold.byte_budget import ByteBudget
from storage_tiers.errors import StorageError

#: Records of one answer: half of what a message may have, so that a large batch at its end still fits.
MAX_FETCH_BYTES = 32 << 20
#: Records of all answers that are being read or written, and how many answers that may be.
ANSWERS_BYTES = 128 << 20
MAX_ANSWERS = 256


def answers_budget() -> ByteBudget:
    return ByteBudget(ANSWERS_BYTES, MAX_ANSWERS)


def bounded(fetch: Fetch) -> Fetch:
    """As much as one message may hold; nobody waits for more."""
    most = min(fetch.max_bytes, MAX_FETCH_BYTES)
    return fetch._replace(max_bytes=most, min_bytes=min(fetch.min_bytes, most))


@asynccontextmanager
async def fetched(log: Log, fetch: Fetch, budget: ByteBudget) -> AsyncIterator[Sequence[Fetched]]:
    """The answers, and room in the budget for their bytes, until the block ends. Giving up gives the read up."""
    answers = await _answers(log, fetch)
    try:
        async with budget.hold(budget.ticket(max(1, sum(each.size for each in answers)))):
            yield answers
    finally:
        for each in answers:
            each.release_all()


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
