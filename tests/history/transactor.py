"""A client that sends and polls in transactions, and commits, aborts or abandons them: one process of recorded operations.

Its consumer is assigned all keys, or is a member of a group whose positions it commits with its transactions. A member follows
the rules for exactly-once processing: it aborts a transaction during which it lost or got partitions, and returns to the
committed positions after every transaction that it does not know to be committed.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import deque

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from tests.faults.clients import WAIT_S
from tests.history.operations import Operation, Outcome, Polled, Sent
from tests.history.recorder import LOST_POSITIONS, Client, Places, Recorder, consumed, place_of, with_offsets

GROUP = "copiers"
#: Seconds: long enough for a restart of the node, and shorter than the transaction timeout.
PATIENCE_S = 15.0
TRANSACTION_TIMEOUT_MS = 20_000
#: Producers of abandoned transactions outlive them. librdkafka 2.16 counts an AddPartitionsToTxn request just after it queues
#: it: a producer destroyed in between fails an assertion, which kills the whole process.
_ABANDONED = deque[Producer](maxlen=32)


class Abandoned(Exception):
    """The producer can do nothing more in this transaction; another one must be initialised."""


class Transactor(Client):
    """`group` is empty for a consumer that is assigned all keys."""

    def __init__(self, recorder: Recorder, name: str, rng: random.Random, *, group: str = "") -> None:
        super().__init__(recorder, name, rng)
        self.group = group
        self.moved: set[str] = set()
        self.places: Places = {}
        self.member = ""
        self.rebalanced = False

    # --- life ---------------------------------------------------------------------------------------------------------
    def open(self) -> None:
        self.begin_anew()
        self.consumer = self.new_consumer()

    def close(self) -> None:
        self.consumer.close()

    def begin_anew(self) -> None:
        """Initialises a new producer; returns once the last transaction of the transactional id is decided."""
        self.producer = Producer(
            {
                **self.recorder.common(),
                "transactional.id": self.name,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "linger.ms": 1,
            }
        )
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                self.producer.init_transactions(PATIENCE_S)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise

    def new_consumer(self) -> Consumer:
        if not self.group:
            consumer = self.recorder.consumer()
            consumer.assign([place_of(key, 0) for key in self.recorder.keys])
            return consumer
        consumer = self.recorder.consumer(
            {
                "group.id": self.group,
                "auto.offset.reset": "error" if self.recorder.loses else "earliest",
                "session.timeout.ms": 3_000,
                "heartbeat.interval.ms": 300,
            }
        )
        topics = sorted({key.rpartition("-")[0] for key in self.recorder.keys})
        on_assign = self._assigned if self.recorder.loses else self._rebalanced
        consumer.subscribe(topics, on_assign=on_assign, on_revoke=self._rebalanced, on_lost=self._rebalanced)
        return consumer

    def _assigned(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        """Starts at the group's positions, or at the beginning of partitions without one. So a position that is gone from the
        log gives an error, and is not taken for a missing one."""
        self._rebalanced(consumer, places)
        with contextlib.suppress(KafkaException):
            known = consumer.committed(places, PATIENCE_S)
            consumer.assign([TopicPartition(at.topic, at.partition, max(0, at.offset)) for at in known])

    def _rebalanced(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self.moved.update(f"{place.topic}-{place.partition}" for place in places)
        self.member = consumer.memberid() or ""
        self.rebalanced = True

    # --- one operation ------------------------------------------------------------------------------------------------
    def work(self) -> None:
        began, offsets, self.rebalanced = self.recorder.now(), dict[int, int](), False
        steps: list[Sent | Polled] = []
        commit: int | None = None
        try:
            self.fill(steps, offsets)
            if self.rebalanced or self.rng.random() < 0.15:
                self.abort()
                outcome = Outcome.FAILED
            else:
                self.send_positions(steps)
                self.flush()
                commit = self.recorder.now()
                outcome = self.commit()
        except (Abandoned, KafkaException):
            outcome = self.recover(commit)
        ended, moved = self.recorder.now(), frozenset(self.moved)
        done = tuple(step if isinstance(step, Polled) else with_offsets([step], offsets)[0] for step in steps)
        self.moved.clear()
        if done or moved:
            self.recorder.record(Operation(self.name, outcome, began, ended, done, commit, moved, group=self.group))
        if self.group and outcome is not Outcome.OK:
            self.go_back()
        elif self.group and self.rng.random() < 0.01:
            self.rejoin()

    def fill(self, steps: list[Sent | Polled], offsets: dict[int, int]) -> None:
        self.producer.begin_transaction()
        for _ in range(self.rng.randrange(1, 7)):
            if self.rng.random() < 0.4:
                steps += [self.recorder.polled(message) for message in self.consumed()]
            else:
                key, value = self.rng.choice(self.recorder.keys), self.recorder.value()
                steps.append(Sent(key, value, None, self.recorder.name(key, value)))
                self.recorder.produce(self.producer, key, value, offsets)
        if self.rng.random() < 0.03:
            raise Abandoned

    def consumed(self) -> list[Message]:
        """The polled records. A member whose position is gone abandons its transaction, and so returns to the group's
        positions."""
        if not self.group or not self.recorder.loses:
            return consumed(self.recorder, self.consumer, 10, self.places, self.moved, 0.05)
        found = self.consumer.consume(10, 0.05)
        if any(error is not None and error.code() in LOST_POSITIONS for error in (each.error() for each in found)):
            raise Abandoned
        return [message for message in found if message.error() is None]

    def send_positions(self, steps: list[Sent | Polled]) -> None:
        """Adds the polled positions to the transaction. The member id must still be the one at the assignment: a member that
        the group has forgotten has no generation, and its commit would not be fenced."""
        ends = {step.key: step.offset + 1 for step in steps if isinstance(step, Polled)}
        if self.group and ends:
            member = self.consumer.consumer_group_metadata()
            if self.consumer.memberid() != self.member:
                raise Abandoned
            self.producer.send_offsets_to_transaction(
                [place_of(key, end) for key, end in ends.items()], member, PATIENCE_S
            )

    def flush(self) -> None:
        if self.producer.flush(PATIENCE_S):
            raise Abandoned

    def commit(self) -> Outcome:
        """Commits; one time in twenty without waiting for the answer."""
        hasty = self.rng.random() < 0.05
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.producer.commit_transaction(0.001 if hasty else PATIENCE_S)
                return Outcome.OK
            except KafkaException as error:
                if hasty or not error.args[0].retriable() or time.monotonic() > deadline:
                    raise

    def abort(self) -> None:
        """Flushes first: librdkafka fails an assertion if it still adds partitions to a transaction that it has aborted."""
        self.flush()
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.producer.abort_transaction(PATIENCE_S)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise

    def recover(self, commit: int | None) -> Outcome:
        """Replaces the producer; returns once the transaction is decided."""
        self.producer.purge()
        _ABANDONED.append(self.producer)
        self.begin_anew()
        return Outcome.FAILED if commit is None else Outcome.UNKNOWN

    # --- the group ----------------------------------------------------------------------------------------------------
    def go_back(self) -> None:
        """Goes back to the committed positions. If that fails, another consumer begins at them."""
        try:
            assigned = self.consumer.assignment()
            for place in self.consumer.committed(assigned, PATIENCE_S):
                self.consumer.seek(
                    TopicPartition(place.topic, place.partition, place.offset if place.offset >= 0 else 0)
                )
            self.moved.update(f"{place.topic}-{place.partition}" for place in assigned)
        except KafkaException:
            self.rejoin()

    def rejoin(self) -> None:
        self.consumer.close()
        self.consumer = self.new_consumer()
        self.moved.update(self.recorder.keys)
