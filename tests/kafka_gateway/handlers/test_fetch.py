"""Fetch: records as they lie in the files, waits, sessions, isolation, in every version."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from grpc_api.contract.log import Append, Fetched
from kafka_gateway.handlers.fetch import encode
from kafka_gateway.hot_parse import FetchRequest
from kafka_gateway.reply import Later
from storage_tiers.errors import TierUnavailable
from storage_tiers.types import AbortedTransaction, TopicPartition
from tests.kafka_gateway.asking import Asker, joined
from tests.kafka_gateway.kio_wire import milliseconds, record_batch, response
from tests.kafka_gateway.memory_core import MemoryCore

VERSIONS = range(4, 19)
BATCH = record_batch(b"value", b"other")


def append(core: MemoryCore, name: str, partition: int, batch: bytes = BATCH) -> None:
    core.append([Append(TopicPartition(name, partition), memoryview(batch))])


def topics(core: MemoryCore, rows: list[tuple[int, int]], name: str = "first") -> list[Any]:
    known = core.ids.get(name)
    topic_id = uuid.UUID(bytes=bytes(known)) if known else uuid.UUID(int=9)
    partitions = [{"partition": p, "fetch_offset": o, "partition_max_bytes": 1 << 20} for p, o in rows]
    return [{"topic": name, "topic_id": topic_id, "partitions": partitions}]


def request(core: MemoryCore, rows: list[tuple[int, int]], name: str = "first", **values: Any) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "replica_id": -1,
        "max_wait": milliseconds(0),
        "min_bytes": 1,
        "session_epoch": -1,
        "topics": topics(core, rows, name),
    }
    return {**defaults, **values}


def rows_of(answer: Any) -> list[tuple[int, int, int, int]]:
    return [
        (row.partition_index, int(row.error_code), row.high_watermark, len(row.records or b""))
        for topic in answer.responses
        for row in topic.partitions
    ]


@pytest.mark.parametrize("version", VERSIONS)
async def test_records_come_as_they_lie_in_the_log(asker: Asker, core: MemoryCore, version: int) -> None:
    append(core, "first", 1)
    append(core, "first", 1)
    append(core, "second", 0)
    wanted = topics(core, [(0, 0), (1, 2), (7, 0)]) + topics(core, [(0, 0)], "second")
    answer = await asker.ask("fetch", version, **request(core, [], topics=wanted))
    size = len(BATCH)
    assert rows_of(answer) == [(0, 0, 0, 0), (1, 0, 4, size), (7, 3, -1, 0), (0, 0, 2, size)]
    records = answer.responses[0].partitions[1].records
    assert records[:8] == (2).to_bytes(8, "big")
    assert records[16:] == BATCH[16:]


@pytest.mark.parametrize("version", VERSIONS)
async def test_errors_stand_by_their_partition(asker: Asker, core: MemoryCore, version: int) -> None:
    unknown = 100 if version >= 13 else 3
    wanted = topics(core, [(0, 5)]) + topics(core, [(0, 0)], "none")
    answer = await asker.ask("fetch", version, **request(core, [], topics=wanted))
    assert rows_of(answer) == [(0, 1, -1, 0), (0, unknown, -1, 0)]


async def test_a_fetch_waits_until_records_come(asker: Asker, core: MemoryCore) -> None:
    reply = asker.begin("fetch", 12, **request(core, [(0, 0)], max_wait=milliseconds(60_000)))
    assert isinstance(reply, Later)
    append(core, "first", 0)
    answer = response("fetch", 12, joined(reply.finish(await reply.future))[4:])
    assert rows_of(answer) == [(0, 0, 2, len(BATCH))]


async def test_a_fetch_of_nothing_is_answered_at_once(asker: Asker, core: MemoryCore) -> None:
    answer = await asker.ask("fetch", 12, **request(core, [], topics=[], max_wait=milliseconds(60_000)))
    assert rows_of(answer) == []


@pytest.mark.parametrize(("session_id", "session_epoch"), [(0, -1), (0, 0), (5, 0), (5, -1)])
async def test_who_asks_for_a_session_gets_none(
    asker: Asker, core: MemoryCore, session_id: int, session_epoch: int
) -> None:
    values = request(core, [(0, 0)], session_id=session_id, session_epoch=session_epoch)
    answer = await asker.ask("fetch", 12, **values)
    assert (int(answer.error_code), answer.session_id) == (0, 0)
    assert rows_of(answer) == [(0, 0, 0, 0)]


@pytest.mark.parametrize(("session_id", "session_epoch"), [(5, 1), (0, 1), (5, 2**31 - 1), (0, -2)])
@pytest.mark.parametrize("version", [7, 11, 12, 18])
async def test_a_session_that_does_not_exist_is_not_found(
    asker: Asker, core: MemoryCore, version: int, session_id: int, session_epoch: int
) -> None:
    values = request(core, [(0, 0)], session_id=session_id, session_epoch=session_epoch)
    answer = await asker.ask("fetch", version, **values)
    assert (int(answer.error_code), answer.session_id, answer.responses) == (70, 0, ())


@pytest.mark.parametrize(("level", "code"), [(0, 0), (1, 0), (2, 42), (-1, 42)])
async def test_isolation_levels(asker: Asker, core: MemoryCore, level: int, code: int) -> None:
    answer = await asker.ask("fetch", 12, **request(core, [(0, 0)], isolation_level=level))
    assert int(answer.error_code) == code


@pytest.mark.parametrize("version", [4, 12, 18])
async def test_a_replica_has_no_business_here(asker: Asker, core: MemoryCore, version: int) -> None:
    values = request(core, [(0, 0)], replica_id=2, replica_state={"replica_id": 2})
    assert rows_of(await asker.ask("fetch", version, **values)) == [(0, 6, -1, 0)]


@pytest.mark.parametrize("version", [4, 6])
async def test_below_version_7_a_failure_stands_by_every_partition(
    asker: Asker, core: MemoryCore, version: int
) -> None:
    reply = asker.begin("fetch", version, **request(core, [(0, 0), (1, 0)], max_wait=milliseconds(60_000)))
    assert isinstance(reply, Later)
    reply.future.cancel()
    answer = response("fetch", version, joined(reply.refuse(TierUnavailable("slow")))[4:])
    assert rows_of(answer) == [(0, 56, -1, 0), (1, 56, -1, 0)]
    await asyncio.gather(reply.future, return_exceptions=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_aborted_transactions_and_diverging_epochs_are_written(version: int) -> None:
    request = FetchRequest()
    key = bytes(16) if version >= 13 else b"topic"
    request.topics, request.indexes = [(key, 2)], [4, 5]
    aborted = [AbortedTransaction(9, 100, 150, 151), AbortedTransaction(10, 120, 160, 161)]
    fetched = [Fetched(None, 200, 190, 5, aborted=aborted), Fetched(None, 200, 190, 5, diverging=(3, 77))]
    answer = response("fetch", version, joined(encode(request, fetched, version, 1))[4:])
    first, second = answer.responses[0].partitions
    assert [(row.producer_id, row.first_offset) for row in first.aborted_transactions] == [(9, 100), (10, 120)]
    assert (first.high_watermark, first.last_stable_offset) == (200, 190)
    assert second.aborted_transactions is None
    if version >= 12:
        assert (second.diverging_epoch.epoch, second.diverging_epoch.end_offset) == (3, 77)
