"""Records of a transactional id: the times and ids that the next coordinator and readers get from them."""

from __future__ import annotations

from grpc_api.contract.transactions import AddPartitions
from service.coordination.transaction_records import TransactionValue
from service.coordination.transactions.transaction import LAST_EPOCH
from tests.service.coordination.transactions.driver import CALLER, A, B, Coordinator
from tests.service.coordination.transactions.test_shard import at_epoch
from tests.service.coordination.whole_values import decode_value


def newest(x: Coordinator) -> TransactionValue:
    value = x.log[-1].value
    assert value is not None
    return decode_value(value)


def test_a_record_has_the_time_of_its_change_and_the_time_when_its_transaction_began() -> None:
    x = Coordinator()
    producer = x.producer()
    began = x.now = x.now + 1_000
    for partition in (A, B):
        x.add(producer, partition)
        assert (newest(x).update_timestamp, newest(x).start_timestamp) == (x.now, began)
        x.now += 1_000
    x.end(producer)
    assert (newest(x).update_timestamp, newest(x).start_timestamp) == (x.now, began)


def test_an_abort_without_partitions_begins_when_it_is_decided() -> None:
    x = Coordinator()
    producer = x.producer()
    assert newest(x).start_timestamp == -1
    x.now += 1_000
    x.end(producer, commit=False)
    assert newest(x).start_timestamp == x.now


def test_a_new_producer_has_no_transaction_yet() -> None:
    x = Coordinator()
    x.committed(x.producer(), A)
    assert newest(x).start_timestamp == x.now
    x.producer()
    assert newest(x).start_timestamp == -1


def test_the_end_of_an_ids_last_transaction_may_be_repeated_after_a_load() -> None:
    x = Coordinator()
    last = at_epoch(x, LAST_EPOCH)
    following = x.committed(last, A)
    assert following.id != last.id
    x.restart()
    again = x.end(last)
    assert (again.error, again.producer) == (None, following)


def test_readers_see_no_partition_whose_record_is_not_committed() -> None:
    x = Coordinator()
    producer = x.producer()
    x.add(producer, A)
    outcome = x.shard.handle(AddPartitions("x", producer, [B], False, 2), CALLER, object(), x.now)
    assert x.shard.describe("x").partitions == [A]
    x.keep(outcome)
    assert x.shard.describe("x").partitions == [A, B]
