"""What readers and the writers of markers see of transactions whose records are not committed."""

from __future__ import annotations

from grpc_api.contract.transactions import (
    ProducerIdAndEpoch,
)
from service.coordination.transactions.shard import TransactionSettings, TransactionShard
from tests.service.coordination.transactions.driver import A, Coordinator


def test_markers_of_a_decision_that_was_loaded_wait_until_it_is_committed() -> None:
    x = Coordinator()
    producer = x.producer()
    x.add(producer, A)
    x.end(producer)
    x.shard = TransactionShard(TransactionSettings())
    for number, record in enumerate(x.log):
        x.shard.load(record.key, record.value, x.now, is_committed=number < 2)
    x.shard.committed(2)
    assert (len(x.log), x.shard.loaded(x.now).records, x.shard.prepared()) == (3, [], [])
    x.shard.committed(3)
    assert [each.producer for each in x.shard.prepared()] == [ProducerIdAndEpoch(101, 1)]
