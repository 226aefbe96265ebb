"""Transaction requests through their handlers, in every version, and a coordinator's refusal in its own field of each answer.
`tests/differential/sessions/transactions.py` has Apache Kafka's answer to each request."""

from __future__ import annotations

import asyncio
import datetime
import uuid
from collections.abc import Iterable
from typing import Any

import pytest

from grpc_api.contract.caller import Caller
from grpc_api.contract.coordinator_errors import CoordinatorLoading, NotCoordinator
from grpc_api.contract.groups import TxnOffsetCommit
from service.coordination.coordinator_runtime import partition_of
from service.coordination.shard_state import ShardState
from storage_tiers.errors import LogError
from storage_tiers.types import TopicPartition
from tests.kafka_gateway.handler_client import HandlerClient
from tests.kafka_gateway.kio_frames import record_batch
from tests.kafka_gateway.memory_core import MemoryCore
from tests.kafka_gateway.memory_groups import PARTITIONS
from tests.kafka_gateway.memory_transactions import MemoryMarkers

NONE, COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR = 0, 15, 14, 16
INVALID_PRODUCER_EPOCH, PRODUCER_FENCED, TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 47, 90, 53
CALLER = Caller("User:ANONYMOUS", "app", "/127.0.0.1")
MINUTE = datetime.timedelta(minutes=1)
FIRST = ({"name": "first", "partitions": (0,)},)


async def begun(handlers: HandlerClient, core: MemoryCore, name: str = "x") -> dict[str, Any]:
    for host in core.transactions._runtime.hosts.values():
        await host._loading
    await core.groups.coordinator("g", CALLER)
    for group in core.groups._runtime.hosts.values():
        await group._loading
    answer = await handlers.ask("init_producer_id", 4, transactional_id=name, transaction_timeout=MINUTE)
    assert int(answer.error_code) == NONE
    return {"transactional_id": name, "producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}


def adding(version: int, producer: dict[str, Any]) -> dict[str, Any]:
    fields = {**producer, "topics": FIRST}
    if version >= 4:
        return {"transactions": ({**fields, "verify_only": False},)}
    return {f"v3_and_below_{name}": value for name, value in fields.items()}


def codes(value: Any) -> set[int]:
    """The error codes of an answer and all its parts."""
    found = {int(getattr(value, name)) for name in ("error_code", "partition_error_code") if hasattr(value, name)}
    for name in getattr(value, "__slots__", ()):
        inner = getattr(value, name)
        for part in inner if isinstance(inner, tuple) else ():
            found |= codes(part)
    return found


def requests(producer: dict[str, Any]) -> Iterable[tuple[str, int, dict[str, Any]]]:
    """A request in each version of each API for transactions."""
    offsets = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
    commit = {**producer, "group_id": "g", "topics": ({"name": "first", "partitions": (offsets,)},)}
    for version in range(6):
        yield "add_partitions_to_txn", version, adding(version, producer)
    for version in range(5):
        yield "add_offsets_to_txn", version, {**producer, "group_id": "g"}
    for version in range(3):
        yield "txn_offset_commit", version, commit
    for version in range(5):
        yield "end_txn", version, {**producer, "committed": True}
    yield "describe_transactions", 0, {"transactional_ids": ("x",)}
    for version in range(3):
        yield "list_transactions", version, {}


async def test_every_request_is_answered(handlers: HandlerClient, core: MemoryCore) -> None:
    producer = await begun(handlers, core)
    for schema, version, fields in requests(producer):
        if schema == "end_txn":
            await handlers.ask("add_partitions_to_txn", 3, **adding(3, producer))
        answer = await handlers.ask(schema, version, **fields)
        assert codes(answer) == {NONE}, (schema, version)
    async with asyncio.timeout(60):
        while (await core.transactions.describe("x", CALLER)).state != "CompleteCommit":
            await asyncio.sleep(0.001)
    listed = await handlers.ask("list_transactions", 0, state_filters=("Open", "CompleteCommit"))
    assert [each.transactional_id for each in listed.transaction_states] == ["x"]
    assert listed.unknown_state_filters == ("Open",)


@pytest.mark.parametrize(
    ("schema", "version", "code"),
    [
        ("add_partitions_to_txn", 1, INVALID_PRODUCER_EPOCH),
        ("add_partitions_to_txn", 2, PRODUCER_FENCED),
        ("add_offsets_to_txn", 1, INVALID_PRODUCER_EPOCH),
        ("add_offsets_to_txn", 2, PRODUCER_FENCED),
        ("end_txn", 1, INVALID_PRODUCER_EPOCH),
        ("end_txn", 2, PRODUCER_FENCED),
    ],
)
async def test_a_fenced_producer_gets_an_error_of_its_version(
    handlers: HandlerClient, core: MemoryCore, schema: str, version: int, code: int
) -> None:
    producer = await begun(handlers, core)
    await begun(handlers, core)
    (fields,) = (rest for name, at, rest in requests(producer) if (name, at) == (schema, version))
    assert codes(await handlers.ask(schema, version, **fields)) == {code}


@pytest.mark.parametrize(("version", "code"), [(3, INVALID_PRODUCER_EPOCH), (4, PRODUCER_FENCED)])
async def test_a_fenced_producer_that_begins_again_gets_an_error_of_its_version(
    handlers: HandlerClient, core: MemoryCore, version: int, code: int
) -> None:
    old = await begun(handlers, core)
    await begun(handlers, core)
    answer = await handlers.ask("init_producer_id", version, **old, transaction_timeout=MINUTE)
    assert (int(answer.error_code), answer.producer_id, answer.producer_epoch) == (code, -1, -1)


@pytest.mark.parametrize(("version", "epochs"), [(4, 0), (5, 1)])
async def test_from_version_5_on_the_end_of_a_transaction_begins_the_next_epoch(
    handlers: HandlerClient, core: MemoryCore, version: int, epochs: int
) -> None:
    producer = await begun(handlers, core)
    await handlers.ask("add_partitions_to_txn", 3, **adding(3, producer))
    ended = await handlers.ask("end_txn", version, **producer, committed=True)
    after = {**producer, "producer_epoch": producer["producer_epoch"] + epochs}
    if epochs:
        assert {"producer_id": ended.producer_id, "producer_epoch": ended.producer_epoch}.items() <= after.items()
    assert codes(await handlers.ask("add_partitions_to_txn", 3, **adding(3, after))) == {NONE}


@pytest.mark.parametrize(("version", "speaks", "knows_abortable"), [(3, 0, False), (4, 0, True), (5, 2, True)])
async def test_a_commit_of_offsets_in_a_transaction_says_what_its_client_knows(
    handlers: HandlerClient,
    core: MemoryCore,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    speaks: int,
    knows_abortable: bool,
) -> None:
    """From the client's transaction version and known errors the coordinator decides whether to add the offsets to the
    transaction, and chooses its errors."""
    entered: list[TxnOffsetCommit] = []

    async def enter(at: TopicPartition, commit: TxnOffsetCommit) -> None:
        entered.append(commit)

    producer = await begun(handlers, core)
    monkeypatch.setattr(core.groups._transactional, "enter", enter)
    offsets = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
    member = {"group_id": "g", "generation_id": -1, "member_id": "", "group_instance_id": None}
    topics = ({"name": "first", "partitions": (offsets,)},)
    assert codes(await handlers.ask("txn_offset_commit", version, **producer, **member, topics=topics)) == {NONE}
    (asked,) = (commit.transaction for commit in entered)
    assert (asked.version, asked.knows_abortable) == (speaks, knows_abortable)


async def test_a_refused_end_names_no_producer(handlers: HandlerClient, core: MemoryCore) -> None:
    """A client would use a named producer for its next transaction."""
    producer = await begun(handlers, core)
    for host in core.transactions._runtime.hosts.values():
        host.state, host._why = ShardState.LOADING, CoordinatorLoading("not yet")
    answer = await handlers.ask("end_txn", 5, **producer, committed=True)
    refused = (int(answer.error_code), answer.producer_id, answer.producer_epoch)
    assert refused == (COORDINATOR_LOAD_IN_PROGRESS, -1, -1)


async def test_each_of_many_transactions_in_one_request_has_its_own_error(
    handlers: HandlerClient, core: MemoryCore
) -> None:
    other = next(each for each in "abcdefgh" if partition_of(each, PARTITIONS) != partition_of("x", PARTITIONS))
    producers = [await begun(handlers, core, name) for name in (other, "x")]
    host = core.transactions._runtime.host(partition_of(other, PARTITIONS))
    host.state, host._why = ShardState.LOADING, CoordinatorLoading("not yet")
    asked = tuple({**each, "topics": FIRST, "verify_only": False} for each in producers)
    answer = await handlers.ask("add_partitions_to_txn", 4, transactions=asked)
    found = [(each.transactional_id, codes(each)) for each in answer.results_by_transaction]
    assert found == [(other, {COORDINATOR_LOAD_IN_PROGRESS}), ("x", {NONE})]


@pytest.mark.parametrize(
    ("state", "why", "code"),
    [
        (ShardState.LOADING, CoordinatorLoading("not yet"), COORDINATOR_LOAD_IN_PROGRESS),
        (ShardState.UNREADABLE, NotCoordinator("not here"), NOT_COORDINATOR),
    ],
    ids=lambda each: each.value if isinstance(each, ShardState) else "",
)
async def test_a_coordinator_that_cannot_answer_says_so_at_its_place(
    handlers: HandlerClient, core: MemoryCore, state: ShardState, why: LogError, code: int
) -> None:
    producer = await begun(handlers, core)
    for hosts in (core.transactions._runtime.hosts, core.groups._runtime.hosts):
        for host in hosts.values():
            host.state, host._why = state, why
    for schema, version, fields in requests(producer):
        if schema == "add_offsets_to_txn" or (schema == "list_transactions" and code == NOT_COORDINATOR):
            continue  # add_offsets asks two coordinators; a list leaves out unreadable shards
        wanted = code
        if schema == "txn_offset_commit" and version < 2 and code == COORDINATOR_LOAD_IN_PROGRESS:
            wanted = COORDINATOR_NOT_AVAILABLE
        assert codes(await handlers.ask(schema, version, **fields)) - {NONE} == {wanted}, (schema, version)


async def test_repeated_ids_are_described_once_and_each_is_answered(
    handlers: HandlerClient, core: MemoryCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await begun(handlers, core)
    await handlers.ask("add_partitions_to_txn", 3, **adding(3, producer))
    described: list[str] = []
    describe = core.transactions.describe

    def counted(transactional_id: str, caller: Caller) -> Any:
        described.append(transactional_id)
        return describe(transactional_id, caller)

    monkeypatch.setattr(core.transactions, "describe", counted)
    answer = await handlers.ask("describe_transactions", 0, transactional_ids=("x", "y", "x"))
    states = [(each.transactional_id, len(each.topics)) for each in answer.transaction_states]
    assert (states, described) == ([("x", 1), ("y", 0), ("x", 1)], ["x", "y"])


async def test_markers_are_answered_partition_by_partition(handlers: HandlerClient, core: MemoryCore) -> None:
    for version in (1, 2):
        topics = ({"name": "first", "partition_indexes": (0, 99)},)
        marker = {"producer_id": 1, "producer_epoch": 0, "transaction_result": True, "coordinator_epoch": 0}
        if version >= 2:
            marker["transaction_version"] = 2
        answer = await handlers.ask("write_txn_markers", version, markers=({**marker, "topics": topics},))
        rows = answer.markers[0].topics[0].partitions
        assert [(each.partition_index, int(each.error_code)) for each in rows] == [(0, NONE), (99, 3)]
    writer = core.transactions._markers
    assert isinstance(writer, MemoryMarkers)
    assert [markers.version for markers in writer.asked] == [0, 2]  # the version decides how epochs are compared


@pytest.mark.parametrize("version", range(3, 14))
async def test_a_transactional_batch_needs_a_transactional_id(
    handlers: HandlerClient, core: MemoryCore, version: int
) -> None:
    batch = bytearray(record_batch(b"a"))
    batch[22] |= 0x10
    topic_id = uuid.UUID(bytes=bytes(core.ids["first"]))
    topic = {"name": "first", "topic_id": topic_id, "partition_data": ({"index": 0, "records": bytes(batch)},)}
    answer = await handlers.ask("produce", version, acks=1, topic_data=(topic,))
    assert codes(answer) == {TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
