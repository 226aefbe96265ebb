"""Drives a transaction shard by hand: time is a number, its log a list."""

from __future__ import annotations

from typing import Any

from grpc_api.contract.caller import Caller
from grpc_api.contract.transactions import (
    NO_PRODUCER,
    AddPartitions,
    EndTransaction,
    InitProducer,
    Markers,
    ProducerIdAndEpoch,
)
from service.coordination.outcome import CoordinatorRecord, Outcome
from service.coordination.transactions.shard import TransactionSettings, TransactionShard
from service.coordination.transactions.transaction import TransactionEvent
from storage_tiers.types import TopicPartition
from tests.service.coordination.whole_values import finish

CALLER = Caller("User:ANONYMOUS", "app", "/127.0.0.1")
A, B, C = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
DAY = 24 * 60 * 60 * 1000


class Coordinator:
    """A shard with its log. Markers are written when a test says so."""

    def __init__(self) -> None:
        #: The cluster's `transaction.version`.
        self.version = 2
        self.shard = self.new_shard()
        self.log: list[CoordinatorRecord] = []
        self.notes: list[str] = []
        self.answers: dict[object, Any] = {}
        self.now = 1_000_000
        self.next_id = 100

    def new_shard(self) -> TransactionShard:
        return TransactionShard(TransactionSettings(), version=lambda: self.version)

    def ask(self, event: TransactionEvent) -> Any:
        """The answer, or a waiter if the request waits; `answers` then gets the answer under that waiter."""
        waiter = object()
        self.keep(self.shard.handle(event, CALLER, waiter, self.now))
        return self.answers.pop(waiter, waiter)

    def keep(self, outcome: Outcome) -> None:
        self.log += outcome.records
        self.notes += [note.event for note in outcome.notes]
        for waiter, answer in outcome.answers:
            self.answers[waiter] = answer
        self.shard.committed(self.shard.written)

    def wait(self, ms: int) -> None:
        self.now += ms
        self.keep(self.shard.tick(self.now))

    def mark(self) -> list[Markers]:
        """Writes all markers that the shard has prepared; returns them."""
        found = self.shard.prepared()
        for markers in found:
            self.keep(self.shard.completed(markers, self.now))
        return found

    def restart(self) -> None:
        self.shard = self.new_shard()
        for record in self.log:
            self.shard.load(record.key, record.value, self.now)
        self.keep(finish(self.shard.loaded(self.now)))

    # --- requests -----------------------------------------------------------------------------------------------------
    def init(self, name: str = "x", expected: ProducerIdAndEpoch = NO_PRODUCER, timeout_ms: int = 60_000) -> Any:
        self.next_id += 1
        return self.ask(InitProducer(name, timeout_ms, expected, self.next_id))

    def producer(self, name: str = "x", **how: Any) -> ProducerIdAndEpoch:
        answer = self.init(name, **how)
        assert answer.error is None
        producer: ProducerIdAndEpoch = answer.producer
        return producer

    def add(
        self,
        producer: ProducerIdAndEpoch,
        *partitions: TopicPartition,
        name: str = "x",
        version: int = 2,
        verify: bool = False,
    ) -> Any:
        return self.ask(AddPartitions(name, producer, partitions, verify, version))

    def end(self, producer: ProducerIdAndEpoch, *, commit: bool = True, name: str = "x", version: int = 2) -> Any:
        self.next_id += 1
        return self.ask(EndTransaction(name, producer, commit, version, self.next_id))

    def committed(
        self, producer: ProducerIdAndEpoch, *partitions: TopicPartition, version: int = 2
    ) -> ProducerIdAndEpoch:
        """Commits one whole transaction; returns the producer for the next one."""
        assert self.add(producer, *partitions, version=version).error is None
        ended = self.end(producer, version=version)
        assert ended.error is None
        self.mark()
        return ended.producer if version == 2 else producer

    @property
    def status(self) -> str:
        return self.shard.describe("x").state
