"""The contract's `Transactions`, for the broker's core, for the same core over a gRPC channel, for three brokers, and
for the core in memory."""

from __future__ import annotations

import asyncio

import pytest

from grpc_api.contract.caller import Caller
from grpc_api.contract.coordinator_errors import (
    CoordinatorLoading,
    InvalidProducerIdMapping,
    InvalidRegularExpression,
    InvalidTransactionTimeout,
    OperationNotAttempted,
    ProducerFenced,
    TransactionAbortable,
    TransactionalIdNotFound,
)
from grpc_api.contract.log import Append, Isolation, OffsetQuery, OffsetSpec
from grpc_api.contract.ready import settled
from grpc_api.contract.transactions import (
    EPOCH_PER_TRANSACTION,
    NO_PRODUCER,
    AddOffsets,
    AddPartitions,
    EndTransaction,
    InitProducer,
    ListedTransaction,
    ListTransactions,
    Markers,
    ProducerIdAndEpoch,
    ProducerTransaction,
    Transactions,
)
from storage_tiers.errors import (
    InvalidProducerEpoch,
    InvalidTransactionState,
    LogError,
    TopicUnauthorized,
    UnknownTopicOrPartition,
)
from storage_tiers.types import TimestampOffset, TopicPartition
from tests.conformance.test_contract_of_groups import coordinated
from tests.service.broker.support import Driven, Running, once_loaded
from tests.storage_tiers.hot.support import batch_of

CALLER = Caller("User:ANONYMOUS", "app", "/10.1.2.3")
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
NOWHERE = TopicPartition("nowhere", 3)


@pytest.fixture
async def core(any_core: Driven) -> Driven:
    """A core with a topic "t" of three partitions."""
    await any_core.create("t", partitions=3)
    return any_core


@pytest.fixture
async def transactions(core: Driven) -> Transactions:
    return core.core.transactions


async def begun(
    transactions: Transactions, name: str = "x", expected: ProducerIdAndEpoch = NO_PRODUCER
) -> ProducerIdAndEpoch:
    await once_loaded(lambda: transactions.coordinator(name, CALLER))
    asked = InitProducer(name, 60_000, expected)
    done = await once_loaded(lambda: transactions.init_producer(asked, CALLER))
    assert done.error is None
    return done.producer


async def add(
    transactions: Transactions, producer: ProducerIdAndEpoch, *partitions: TopicPartition, name: str = "x"
) -> None:
    added = await transactions.add_partitions(AddPartitions(name, producer, partitions), CALLER)
    assert (added.error, list(added.errors)) == (None, [])


async def reaches(transactions: Transactions, state: str, name: str = "x") -> None:
    async with asyncio.timeout(60):
        while (await transactions.describe(name, CALLER)).state != state:
            await asyncio.sleep(0.005)


# --- producers --------------------------------------------------------------------------------------------------------
async def test_a_producer_that_begins_fences_the_previous_one(core: Driven, transactions: Transactions) -> None:
    brokers = {each.node_id for each in core.core.topics.cluster().brokers}
    assert await once_loaded(lambda: transactions.coordinator("x", CALLER)) in brokers
    first = await begun(transactions)
    assert first.id >= 0 and first.epoch == 0
    second = await begun(transactions)
    assert second == (first.id, 1)
    old = await transactions.add_partitions(AddPartitions("x", first, [T0]), CALLER)
    assert isinstance(old.error, ProducerFenced) and list(old.errors) == []
    ended = await transactions.end(EndTransaction("x", first, commit=True), CALLER)
    assert isinstance(ended.error, ProducerFenced) and ended.producer == NO_PRODUCER
    stranger = ProducerIdAndEpoch(first.id + 70_000, 0)
    other = await transactions.end(EndTransaction("x", stranger, commit=True), CALLER)
    assert isinstance(other.error, InvalidProducerIdMapping)


async def test_a_producer_continues_as_itself(transactions: Transactions) -> None:
    first = await begun(transactions)
    assert await begun(transactions, expected=first) == (first.id, 1)
    asked = InitProducer("x", 60_000, ProducerIdAndEpoch(first.id, 7))
    refused = await transactions.init_producer(asked, CALLER)
    assert isinstance(refused.error, ProducerFenced) and refused.producer == NO_PRODUCER


async def test_a_timeout_beyond_the_brokers_is_refused(transactions: Transactions) -> None:
    await begun(transactions)
    for timeout_ms in (0, 2**31 - 1):
        refused = await transactions.init_producer(InitProducer("x", timeout_ms), CALLER)
        assert isinstance(refused.error, InvalidTransactionTimeout)


async def test_a_transaction_of_partitions_is_committed(transactions: Transactions) -> None:
    producer = await begun(transactions)
    nothing = await transactions.end(EndTransaction("x", producer, commit=True), CALLER)
    assert isinstance(nothing.error, InvalidTransactionState)
    await add(transactions, producer, T0, T1)
    found = await transactions.describe("x", CALLER)
    assert (found.error, found.transactional_id, found.state, found.producer) == (None, "x", "Ongoing", producer)
    assert (found.timeout_ms, sorted(found.partitions)) == (60_000, [T0, T1])
    assert found.start_ms > 0
    ended = await transactions.end(EndTransaction("x", producer, commit=True), CALLER)
    assert (ended.error, ended.producer) == (None, NO_PRODUCER)
    await reaches(transactions, "CompleteCommit")
    assert list((await transactions.describe("x", CALLER)).partitions) == []


async def test_with_version_2_every_end_names_the_next_producer(transactions: Transactions) -> None:
    producer = await begun(transactions)
    await add(transactions, producer, T0)
    asked = EndTransaction("x", producer, commit=False, client_version=EPOCH_PER_TRANSACTION)
    ended = await transactions.end(asked, CALLER)
    assert (ended.error, ended.producer) == (None, (producer.id, producer.epoch + 1))
    await reaches(transactions, "CompleteAbort")
    again = await transactions.end(asked, CALLER)
    assert (again.error, again.producer) == (None, ended.producer)


async def test_one_unknown_partition_keeps_all_out(transactions: Transactions) -> None:
    producer = await begun(transactions)
    added = await transactions.add_partitions(AddPartitions("x", producer, [NOWHERE, T0]), CALLER)
    assert added.error is None
    kinds = [(partition, type(error)) for partition, error in added.errors]
    assert kinds == [(NOWHERE, UnknownTopicOrPartition), (T0, OperationNotAttempted)]
    assert (await transactions.describe("x", CALLER)).state == "Empty"


async def test_clients_add_no_internal_topics(transactions: Transactions) -> None:
    producer = await begun(transactions)
    own = TopicPartition("__consumer_offsets", 0)
    added = await transactions.add_partitions(AddPartitions("x", producer, [own, T0, NOWHERE]), CALLER)
    kinds = [(partition, type(error)) for partition, error in added.errors]
    assert kinds == [(own, TopicUnauthorized), (T0, OperationNotAttempted), (NOWHERE, UnknownTopicOrPartition)]
    assert (await transactions.describe("x", CALLER)).state == "Empty"


async def test_a_broker_asks_whether_partitions_are_in_a_transaction(transactions: Transactions) -> None:
    producer = await begun(transactions)
    await add(transactions, producer, T0)
    asked = AddPartitions("x", producer, [T0], verify_only=True, client_version=EPOCH_PER_TRANSACTION)
    inside = await transactions.add_partitions(asked, CALLER)
    assert (inside.error, list(inside.errors)) == (None, [])
    outside = await transactions.add_partitions(asked._replace(partitions=[T0, T1]), CALLER)
    assert [(partition, type(error)) for partition, error in outside.errors] == [(T1, TransactionAbortable)]
    assert list((await transactions.describe("x", CALLER)).partitions) == [T0]


async def test_a_groups_offsets_join_a_transaction(core: Driven, transactions: Transactions) -> None:
    await coordinated(core.core.groups)
    producer = await begun(transactions)
    added = await transactions.add_offsets(AddOffsets("x", producer, "g"), CALLER)
    assert (added.error, list(added.errors)) == (None, [])
    assert [topic for topic, _ in (await transactions.describe("x", CALLER)).partitions] == ["__consumer_offsets"]
    stale = await transactions.add_offsets(AddOffsets("x", producer._replace(epoch=9), "g"), CALLER)
    assert isinstance(stale.error, ProducerFenced | InvalidProducerEpoch)


# --- administration ---------------------------------------------------------------------------------------------------
async def test_transactions_are_listed_by_state_producer_age_and_name(transactions: Transactions) -> None:
    one, two = await begun(transactions, "one"), await begun(transactions, "two")
    await add(transactions, two, T0, name="two")
    rows = {ListedTransaction("one", one.id, "Empty"), ListedTransaction("two", two.id, "Ongoing")}
    async with asyncio.timeout(60):
        while (listed := await transactions.list(ListTransactions(), CALLER)).error is not None:
            assert isinstance(listed.error, CoordinatorLoading)
            await asyncio.sleep(0.005)
    assert set(listed.transactions) == rows
    for request, names in (
        (ListTransactions(states=frozenset({"Ongoing"})), {"two"}),
        (ListTransactions(states=frozenset({"Empty", "Ongoing"})), {"one", "two"}),
        (ListTransactions(producer_ids=frozenset({one.id})), {"one"}),
        (ListTransactions(duration_ms=3_600_000), {"one"}),  # as in Kafka: an id without a transaction passes
        (ListTransactions(duration_ms=0, pattern="t.."), {"two"}),
        (ListTransactions(pattern="o|two"), {"two"}),
    ):
        async with asyncio.timeout(60):  # the transaction gets older than 0 ms
            while {each.transactional_id for each in (await transactions.list(request, CALLER)).transactions} != names:
                await asyncio.sleep(0.005)
    wrong = await transactions.list(ListTransactions(pattern="("), CALLER)
    assert isinstance(wrong.error, InvalidRegularExpression) and list(wrong.transactions) == []


async def test_an_unknown_transactional_id_is_not_found(transactions: Transactions) -> None:
    await begun(transactions)
    found = await once_loaded(lambda: transactions.describe("nobody", CALLER))  # its coordinator is another partition
    assert isinstance(found.error, TransactionalIdNotFound)
    assert found[1:] == ("nobody", "", (0, 0), 0, 0, found.partitions) and list(found.partitions) == []


async def test_markers_name_the_partitions_that_are_not_there(transactions: Transactions) -> None:
    producer = await begun(transactions)
    refused = await transactions.write_markers(Markers("", producer, False, [NOWHERE], 0), 0, CALLER)
    assert [(partition, type(error)) for partition, error in refused] == [(NOWHERE, UnknownTopicOrPartition)]


# --- with the log -----------------------------------------------------------------------------------------------------
async def end_of(node: Running, isolation: Isolation) -> int:
    (answer,) = await node.log.list_offsets([OffsetQuery(T0, OffsetSpec.LATEST, isolation=isolation)])
    assert isinstance(answer, TimestampOffset)
    return answer.offset


async def write(node: Running, producer: ProducerIdAndEpoch, sequence: int = 0) -> LogError | None:
    data = memoryview(batch_of(1, producer=(*producer, sequence), transactional=True))
    transaction = ProducerTransaction("x", EPOCH_PER_TRANSACTION, knows_abortable=True)
    (answer,) = await settled(node.log.append([Append(T0, data)], transaction=transaction))
    if isinstance(answer, LogError):
        return answer
    if answer.committed is not None:
        await answer.committed
    return None


async def test_records_of_a_transaction_are_readable_once_it_is_committed(node: Running) -> None:
    await node.create("t")
    transactions = node.core.transactions
    producer = await begun(transactions)
    assert await write(node, producer) is None
    assert (await transactions.describe("x", CALLER)).state == "Ongoing"
    assert [await end_of(node, isolation) for isolation in (Isolation.READ_UNCOMMITTED, Isolation.READ_COMMITTED)] == [
        1,
        0,
    ]
    ended = await transactions.end(EndTransaction("x", producer, True, EPOCH_PER_TRANSACTION), CALLER)
    assert ended.error is None
    async with asyncio.timeout(60):
        while await end_of(node, Isolation.READ_COMMITTED) < 2:
            await asyncio.sleep(0.005)
    assert isinstance(await write(node, producer, 1), InvalidProducerEpoch)
    assert await write(node, ended.producer) is None


async def test_an_administrators_marker_ends_a_transaction_in_its_partition(node: Running) -> None:
    await node.create("t")
    transactions = node.core.transactions
    producer = await begun(transactions)
    assert await write(node, producer) is None
    assert list(await transactions.write_markers(Markers("", producer, False, [T0], 0), 0, CALLER)) == []
    assert await end_of(node, Isolation.READ_COMMITTED) == 2
