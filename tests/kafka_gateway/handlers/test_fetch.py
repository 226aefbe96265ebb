"""Fetch: records byte for byte as in the files, waits, sessions and isolation, in every version."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from grpc_api.contract.log import Append, Fetched, FetchPartition
from kafka_gateway.fetch_sessions import CachedPartition
from kafka_gateway.handlers.fetch import encode
from kafka_gateway.reply import DelayedReply
from storage_tiers.errors import TierUnavailable
from storage_tiers.types import AbortedTransaction, TopicId, TopicPartition
from tests.kafka_gateway.handler_client import HandlerClient, joined
from tests.kafka_gateway.kio_frames import milliseconds, record_batch, response
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
async def test_records_are_returned_as_stored(handlers: HandlerClient, core: MemoryCore, version: int) -> None:
    append(core, "first", 1)
    append(core, "first", 1)
    append(core, "second", 0)
    wanted = topics(core, [(0, 0), (1, 2), (7, 0)]) + topics(core, [(0, 0)], "second")
    answer = await handlers.ask("fetch", version, **request(core, [], topics=wanted))
    size = len(BATCH)
    # As in Kafka, partitions that do not exist come last.
    assert rows_of(answer) == [(0, 0, 0, 0), (1, 0, 4, size), (0, 0, 2, size), (7, 3, -1, 0)]
    records = answer.responses[0].partitions[1].records
    assert records[:8] == (2).to_bytes(8, "big")
    assert records[16:] == BATCH[16:]


@pytest.mark.parametrize("version", VERSIONS)
async def test_errors_are_returned_with_their_partition(
    handlers: HandlerClient, core: MemoryCore, version: int
) -> None:
    unknown = 100 if version >= 13 else 3
    wanted = topics(core, [(0, 5)]) + topics(core, [(0, 0)], "none")
    answer = await handlers.ask("fetch", version, **request(core, [], topics=wanted))
    assert rows_of(answer) == [(0, 1, -1, 0), (0, unknown, -1, 0)]


async def test_a_fetch_waits_until_records_come(handlers: HandlerClient, core: MemoryCore) -> None:
    reply = handlers.begin("fetch", 12, **request(core, [(0, 0)], max_wait=milliseconds(60_000)))
    assert isinstance(reply, DelayedReply)
    append(core, "first", 0)
    answer = response("fetch", 12, joined(reply.finish(await reply.future))[4:])
    assert rows_of(answer) == [(0, 0, 2, len(BATCH))]


async def test_a_fetch_of_nothing_is_answered_at_once(handlers: HandlerClient, core: MemoryCore) -> None:
    answer = await handlers.ask("fetch", 12, **request(core, [], topics=[], max_wait=milliseconds(60_000)))
    assert rows_of(answer) == []


async def test_a_partition_named_twice_keeps_its_first_position_and_last_values(
    handlers: HandlerClient, core: MemoryCore
) -> None:
    answer = await handlers.ask("fetch", 12, **request(core, [(1, 0), (0, 0), (1, 9)]))
    assert rows_of(answer) == [(1, 1, -1, 0), (0, 0, 0, 0)]


async def test_a_fetch_without_a_session_creates_none(handlers: HandlerClient, core: MemoryCore) -> None:
    for session_id in (0, 5):
        answer = await handlers.ask("fetch", 12, **request(core, [(0, 0)], session_id=session_id, session_epoch=-1))
        assert (int(answer.error_code), answer.session_id) == (0, 0)
        assert rows_of(answer) == [(0, 0, 0, 0)]


@pytest.mark.parametrize(("session_id", "session_epoch"), [(5, 1), (0, 1), (5, 2**31 - 1), (0, -2), (-7, 1)])
@pytest.mark.parametrize("version", [7, 11, 12, 18])
async def test_a_session_that_does_not_exist_is_not_found(
    handlers: HandlerClient, core: MemoryCore, version: int, session_id: int, session_epoch: int
) -> None:
    values = request(core, [(0, 0)], session_id=session_id, session_epoch=session_epoch)
    answer = await handlers.ask("fetch", version, **values)
    assert (int(answer.error_code), answer.session_id, answer.responses) == (70, 0, ())


@pytest.mark.parametrize("version", [7, 12, 13, 18])
async def test_a_session_returns_changes_only(handlers: HandlerClient, core: MemoryCore, version: int) -> None:
    other = 13 if version < 13 else 12
    unknown = 100 if version >= 13 else 3
    wanted = topics(core, [(0, 0), (1, 0)]) + topics(core, [(0, 0)], "none") + topics(core, [(0, 0)], "second")
    full = await handlers.ask("fetch", version, **request(core, [], topics=wanted, session_epoch=0))
    assert full.session_id > 0
    assert rows_of(full) == [(0, 0, 0, 0), (1, 0, 0, 0), (0, 0, 0, 0), (0, unknown, -1, 0)]

    async def ask(epoch: int, rows: Any = (), forget: Any = (), *, ver: int = version) -> tuple[int, Any]:
        values = request(core, [], topics=list(rows), session_id=full.session_id, session_epoch=epoch)
        answer = await handlers.ask("fetch", ver, **values, forgotten_topics_data=list(forget))
        assert answer.session_id == (0 if answer.error_code else full.session_id)
        return int(answer.error_code), rows_of(answer)

    errors = [(0, unknown, -1, 0)]
    assert await ask(1) == (0, errors)
    assert await ask(1) == (71, []), "an epoch already used"
    assert await ask(3) == (71, []), "an epoch in the future"
    assert await ask(2, ver=other) == (106, []), "ids in a session of names, or names in one of ids"
    append(core, "second", 0)
    assert await ask(2) == (0, [(0, 0, 2, len(BATCH)), *errors])
    assert await ask(3, topics(core, [(0, 2)], "second")) == (0, errors), "read up to its end"
    assert await ask(4, topics(core, [(1, 8)])) == (0, [(1, 1, -1, 0), *errors])
    assert await ask(5, topics(core, [(1, 0)])) == (0, [(1, 0, 0, 0), *errors]), "the end of an error is reported"
    gone = {"topic": "none", "topic_id": uuid.UUID(int=9), "partitions": [0]}
    assert await ask(6, [], [gone]) == (0, [])
    await core.delete_records(TopicPartition("second", 0), 1)
    assert await ask(7) == (0, [(0, 0, 2, 0)]), "a changed log start"
    everything = [
        {"topic": name, "topic_id": uuid.UUID(bytes=bytes(core.ids[name])), "partitions": [0, 1, 2]}
        for name in ("first", "second")
    ]
    values = request(core, [], topics=[], session_id=full.session_id, session_epoch=8)
    emptied = await handlers.ask("fetch", version, **values, forgotten_topics_data=everything)
    assert (int(emptied.error_code), emptied.session_id, rows_of(emptied)) == (0, 0, [])
    assert await ask(9) == (70, []), "a session without partitions ends"


async def test_a_session_learns_the_name_of_an_id_when_the_topic_is_there(
    handlers: HandlerClient, core: MemoryCore
) -> None:
    late = TopicId(bytes(15) + b"\x09")
    full = await handlers.ask("fetch", 13, **request(core, [(0, 0)], "none", session_epoch=0))
    assert rows_of(full) == [(0, 100, -1, 0)]
    core.names[late], core.ids["first-again"] = "first", late
    values = request(core, [], topics=[], session_id=full.session_id, session_epoch=1)
    assert rows_of(await handlers.ask("fetch", 13, **values)) == [(0, 0, 0, 0)]


async def test_partitions_with_records_move_to_the_end_of_a_session(handlers: HandlerClient, core: MemoryCore) -> None:
    for partition in (0, 1, 2):
        append(core, "first", partition)
    full = await handlers.ask("fetch", 12, **request(core, [(0, 2), (1, 2), (2, 2)], session_epoch=0))
    order = []
    for epoch, at in ((1, 0), (2, 2)):
        rows = topics(core, [(0, at)])
        values = request(core, [], topics=rows, session_id=full.session_id, session_epoch=epoch)
        order.append([row[0] for row in rows_of(await handlers.ask("fetch", 12, **values))])
    for partition in (0, 1, 2):
        append(core, "first", partition)
    values = request(core, [], topics=[], session_id=full.session_id, session_epoch=3)
    order.append([row[0] for row in rows_of(await handlers.ask("fetch", 12, **values))])
    assert order == [[0], [], [1, 2, 0]]


async def test_a_delayed_answer_for_an_older_session_epoch_is_an_error(
    handlers: HandlerClient, core: MemoryCore
) -> None:
    full = await handlers.ask("fetch", 12, **request(core, [(0, 0)], session_epoch=0))
    wait = milliseconds(60_000)
    first = request(core, [], topics=[], session_id=full.session_id, session_epoch=1, max_wait=wait)
    reply = handlers.begin("fetch", 12, **first)
    assert isinstance(reply, DelayedReply)
    second = request(core, [], topics=[], session_id=full.session_id, session_epoch=2)
    assert int((await handlers.ask("fetch", 12, **second)).error_code) == 0
    append(core, "first", 0)
    answer = response("fetch", 12, joined(reply.finish(await reply.future))[4:])
    assert (int(answer.error_code), answer.session_id, rows_of(answer)) == (71, full.session_id, [])


async def test_a_full_request_ends_the_session_it_names(handlers: HandlerClient, core: MemoryCore) -> None:
    full = await handlers.ask("fetch", 12, **request(core, [(0, 0)], session_epoch=0))
    again = await handlers.ask("fetch", 12, **request(core, [(0, 0)], session_id=full.session_id, session_epoch=0))
    assert again.session_id not in (0, full.session_id)
    for session_id, epoch, code in ((full.session_id, 1, 70), (again.session_id, -1, 0), (again.session_id, 1, 70)):
        values = request(core, [(0, 0)], session_id=session_id, session_epoch=epoch)
        assert int((await handlers.ask("fetch", 12, **values)).error_code) == code


@pytest.mark.parametrize(("level", "code"), [(0, 0), (1, 0), (2, 42), (-1, 42)])
async def test_only_isolation_levels_0_and_1_are_accepted(
    handlers: HandlerClient, core: MemoryCore, level: int, code: int
) -> None:
    answer = await handlers.ask("fetch", 12, **request(core, [(0, 0)], isolation_level=level))
    assert int(answer.error_code) == code


@pytest.mark.parametrize("version", VERSIONS)
async def test_below_version_13_a_failed_request_fails_for_every_partition_too(
    handlers: HandlerClient, core: MemoryCore, version: int
) -> None:
    answer = await handlers.ask("fetch", version, **request(core, [(0, 0), (9, 0)], isolation_level=3, session_id=17))
    rows = [(0, 42, -1, 0), (9, 42, -1, 0)]
    assert rows_of(answer) == (rows if version < 13 else [])
    if version >= 7:
        assert (int(answer.error_code), answer.session_id) == (42, 17)
    if version < 13:
        assert answer.responses[0].partitions[0].aborted_transactions == ()


@pytest.mark.parametrize("version", [4, 12, 18])
async def test_a_fetch_of_a_replica_that_does_not_follow_is_refused(
    handlers: HandlerClient, core: MemoryCore, version: int
) -> None:
    values = request(core, [(0, 0)], replica_id=2, replica_state={"replica_id": 2})
    assert rows_of(await handlers.ask("fetch", version, **values)) == [(0, 6, -1, 0)]


@pytest.mark.parametrize("version", [4, 6])
async def test_below_version_7_a_failure_is_repeated_for_every_partition(
    handlers: HandlerClient, core: MemoryCore, version: int
) -> None:
    reply = handlers.begin("fetch", version, **request(core, [(0, 0), (1, 0)], max_wait=milliseconds(60_000)))
    assert isinstance(reply, DelayedReply)
    reply.future.cancel()
    answer = response("fetch", version, joined(reply.refuse(TierUnavailable("slow")))[4:])
    assert rows_of(answer) == [(0, 56, -1, 0), (1, 56, -1, 0)]
    await asyncio.gather(reply.future, return_exceptions=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_aborted_transactions_and_diverging_epochs_are_written(version: int) -> None:
    key = bytes(16) if version >= 13 else b"topic"
    wanted = FetchPartition(TopicPartition("topic", 4), 0, 1)
    aborted = [AbortedTransaction(9, 100, 150, 151), AbortedTransaction(10, 120, 160, 161)]
    rows = [
        (CachedPartition(key, 4, wanted), Fetched(None, 200, 190, 5, aborted=aborted)),
        (CachedPartition(key, 5, wanted), Fetched(None, 200, 190, 5, diverging=(3, 77))),
    ]
    answer = response("fetch", version, joined(encode(rows, version, 1))[4:])
    first, second = answer.responses[0].partitions
    assert [(row.producer_id, row.first_offset) for row in first.aborted_transactions] == [(9, 100), (10, 120)]
    assert (first.high_watermark, first.last_stable_offset) == (200, 190)
    assert second.aborted_transactions is None
    if version >= 12:
        assert (second.diverging_epoch.epoch, second.diverging_epoch.end_offset) == (3, 77)
