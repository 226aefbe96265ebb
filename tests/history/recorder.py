"""Real clients whose every operation is recorded: transactions of sends and polls, plain sends, and readers of all keys.

Each client has a thread of its own and outlives every death of the node. A *process* of the recorded operations is one client.
A client that gives up its producer in the middle of a transaction, or while it waits for the answer to its commit, begins again
with the same transactional id: the node then decides the transaction, and the operation ends.

The judge knows values by number only, so this module compares a polled record's bytes with the sent ones.

A recorder that `loses` disks gets each loss before new records get the lost offsets. Its clients then accept the loss: a reader
whose position is gone continues at the bound, and a send that is finally refused has the outcome UNKNOWN.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.faults.clients import QUICK_RETRIES, WAIT_S, until
from tests.history.operations import Operation, Operations, Outcome, Polled, Sent

#: The longest that a client may take to end, in seconds: some calls of librdkafka have no timeout.
LAST_OPERATION_S = 240.0
#: By key: the offset at which a consumer that is assigned all keys continues. A key without an entry has not been read yet.
Places = dict[str, int]
#: Errors of a consumer whose position is not in the log, or whose group has no position.
LOST_POSITIONS = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION)
#: The number of names (record keys) in a compacted key.
NAMES = 40


class Recorder:
    """State that all clients share. `failures` are errors that no client may see."""

    def __init__(
        self,
        bootstrap: str,
        keys: Sequence[str],
        compacted: frozenset[str],
        *,
        isolation: str = "read_committed",
        loses: bool = False,
    ) -> None:
        self.bootstrap, self.keys, self.isolation, self.loses = bootstrap, tuple(keys), isolation, loses
        self.operations = Operations(compacted=compacted)
        self.failures: list[str] = []
        self.ending = threading.Event()
        self._lock = threading.Lock()
        self._began = time.monotonic_ns()
        self._values = 0

    def now(self) -> int:
        return time.monotonic_ns() - self._began

    def value(self) -> int:
        with self._lock:
            self._values += 1
            return self._values

    def record(self, done: Operation) -> None:
        with self._lock:
            self.operations.done.append(done)

    def bound(self, key: str) -> int:
        """The offset at which a reader continues whose position in the key was lost. AssertionError if the key has no loss."""
        ends = [loss.end for loss in self.operations.losses if loss.key == key]
        assert ends, f"{key}: the log does not have the position of a reader, and no disk of it was lost"
        return ends[-1]

    def common(self) -> dict[str, str | int | bool]:
        # To bootstrap again, librdkafka 2.16 destroys its only broker; a call that waits for that broker then never returns.
        return {"bootstrap.servers": self.bootstrap, "metadata.recovery.strategy": "none", **QUICK_RETRIES}

    def consumer(self, settings: Mapping[str, str | int | bool] | None = None) -> Consumer:
        """A consumer that gets an error if its position is not in the log."""
        return Consumer(
            {
                **self.common(),
                "group.id": "unused",
                "enable.auto.commit": False,
                "isolation.level": self.isolation,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 50,
                **(settings or {}),
            }
        )

    def polled(self, message: Message) -> Polled:
        key, body, offset = key_of(message), cast("bytes", message.value()), cast("int", message.offset())
        value = int(body.partition(b" ")[0])
        if body != content(value):
            self.failures.append(f"{key}/{offset}: the bytes of {value} are not those that were sent: {body[:60]!r}")
        return Polled(key, value, offset)

    def name(self, key: str, value: int) -> str:
        return f"n{value % NAMES}" if key in self.operations.compacted else ""

    def produce(self, producer: Producer, key: str, value: int, offsets: dict[int, int]) -> None:
        """`offsets` gets the offset of the record, when it is known."""

        def delivered(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is None and offset is not None and offset >= 0:
                offsets[value] = offset

        topic, _, partition = key.rpartition("-")
        name = self.name(key, value).encode() or None
        producer.produce(topic, content(value), key=name, partition=int(partition), on_delivery=delivered)
        producer.poll(0)

    def whole_reading(self, process: str) -> Operation:
        """Reads every key from its beginning to its log's end, and records the operation. Every transaction must be decided:
        the answer to a commit comes before its markers are written, and until then a reader of committed records does not reach
        the log's end."""
        consumer = self.consumer({"enable.partition.eof": True})
        began, steps, ends = self.now(), list[Polled](), self._log_ends()
        left = set(self.keys)
        deadline = time.monotonic() + WAIT_S
        try:
            consumer.assign([place_of(key, self._log_start(consumer, key)) for key in self.keys])
            while left:
                assert time.monotonic() < deadline, f"{process} did not reach the ends {ends} of {sorted(left)}"
                for message in consumer.consume(500, 0.2):
                    error, key = message.error(), key_of(message)
                    if error is None:
                        steps.append(self.polled(message))
                    else:
                        assert error.code() == KafkaError._PARTITION_EOF, f"{process}: {error}"
                        if cast("int", message.offset()) >= ends[key]:
                            left.discard(key)
        finally:
            consumer.close()
        done = Operation(process, Outcome.OK, began, self.now(), tuple(steps), whole=frozenset(self.keys))
        self.record(done)
        return done

    def _log_ends(self) -> dict[str, int]:
        """The high watermarks of all keys, which open transactions do not hold back."""
        consumer = self.consumer({"isolation.level": "read_uncommitted"})
        try:
            return {key: self._watermarks(consumer, key)[1] for key in self.keys}
        finally:
            consumer.close()

    def _log_start(self, consumer: Consumer, key: str) -> int:
        return self._watermarks(consumer, key)[0]

    def _watermarks(self, consumer: Consumer, key: str) -> tuple[int, int]:
        """Log start and end of a key, as soon as it has a leader."""
        found: list[tuple[int, int]] = []

        def is_known() -> bool:
            try:
                found.append(consumer.get_watermark_offsets(place_of(key), timeout=WAIT_S))
            except KafkaException as error:
                if error.args[0].code() != KafkaError.LEADER_NOT_AVAILABLE:
                    raise
            return bool(found)

        until(is_known, f"{key} has a leader")
        return found[0]


class Client:
    """One process: `work` does one operation after another until the recorder ends."""

    def __init__(self, recorder: Recorder, name: str, rng: random.Random) -> None:
        self.recorder, self.name, self.rng = recorder, name, rng
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Client:
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.recorder.ending.set()
        self.thread.join(LAST_OPERATION_S)
        if self.thread.is_alive():
            frame = sys._current_frames().get(self.thread.ident or 0)
            stuck = "".join(traceback.format_stack(frame)[-3:]) if frame else "it has just ended"
            self.recorder.failures.append(f"{self.name} does not end its last operation:\n{stuck}")

    def _run(self) -> None:
        try:
            self.open()
            while not self.recorder.ending.is_set():
                self.work()
            self.close()
        except Exception as error:  # noqa: BLE001 (a thread's error ends the test, not the thread alone)
            self.recorder.failures.append(f"{self.name}: {error!r}")

    def open(self) -> None: ...

    def work(self) -> None:
        raise NotImplementedError

    def close(self) -> None: ...


class Sender(Client):
    """An idempotent producer that sends a few records, waits until all are acknowledged, and sends more."""

    def open(self) -> None:
        self.producer = Producer(
            {**self.recorder.common(), "enable.idempotence": True, "message.timeout.ms": 0, "linger.ms": 1}
        )

    def work(self) -> None:
        began, offsets, sends = self.recorder.now(), dict[int, int](), list[Sent]()
        with contextlib.suppress(*((KafkaException,) if self.recorder.loses else ())):
            for _ in range(self.rng.randrange(1, 9)):
                key, value = self.rng.choice(self.recorder.keys), self.recorder.value()
                sends.append(Sent(key, value, None, self.recorder.name(key, value)))
                self.recorder.produce(self.producer, key, value, offsets)
        self.flush()
        assert self.recorder.loses or len(offsets) == len(sends), "sends failed"
        ended, known = self.recorder.now(), [sent for sent in sends if sent.value in offsets]
        steps = tuple(with_offsets(known, offsets))
        self.recorder.record(Operation(self.name, Outcome.OK, began, ended, steps, commit=began))
        for sent in sends:
            if sent.value not in offsets:  # the log may hold it nevertheless
                name = f"{self.name}, refused {sent.value}"
                self.recorder.record(Operation(name, Outcome.UNKNOWN, began, ended, (sent,), commit=began))
        if len(known) < len(sends):
            self.open()

    def flush(self) -> None:
        """Waits for all acknowledgements. A partition that has lost a producer's newest sequences refuses all later ones, so
        the rest is purged."""
        deadline = time.monotonic() + WAIT_S
        try:
            while self.producer.flush(1):
                assert time.monotonic() < deadline, "sends are not acknowledged"
        except KafkaException:
            if not self.recorder.loses:
                raise
            self.producer.purge()
            self.producer.poll(1)


class Follower(Client):
    """A consumer that is assigned all keys and reads on from their beginning; now and then a new consumer replaces it at the
    beginning."""

    count = 0

    def open(self) -> None:
        self.count += 1
        self.process = f"{self.name}.{self.count}"
        self.consumer = self.recorder.consumer()
        self.consumer.assign([place_of(key, 0) for key in self.recorder.keys])
        self.places: Places = {}

    def work(self) -> None:
        began, moved = self.recorder.now(), set[str]()
        polled = [
            self.recorder.polled(each) for each in consumed(self.recorder, self.consumer, 200, self.places, moved)
        ]
        if polled or moved:
            done = Operation(
                self.process, Outcome.OK, began, self.recorder.now(), tuple(polled), moved=frozenset(moved)
            )
            self.recorder.record(done)
        if self.rng.random() < 0.005:
            self.close()
            self.open()

    def close(self) -> None:
        self.consumer.close()


def key_of(message: Message) -> str:
    return f"{message.topic()}-{message.partition()}"


def place_of(key: str, offset: int = -1001) -> TopicPartition:
    topic, _, partition = key.rpartition("-")
    return TopicPartition(topic, int(partition), offset)


def content(value: int) -> bytes:
    rng = random.Random(value)
    return b"%d " % value + rng.randbytes(rng.randrange(20, 600))


def with_offsets(steps: Sequence[Sent], offsets: dict[int, int]) -> list[Sent]:
    return [Sent(step.key, step.value, offsets.get(step.value), step.name) for step in steps]


def consumed(
    recorder: Recorder, consumer: Consumer, most: int, places: Places, moved: set[str], seconds: float = 0.1
) -> list[Message]:
    """The polled records. A consumer whose position is gone continues at the bound of the loss, and the key is added to
    `moved`. AssertionError if there was no loss."""
    found, lost = list[Message](), dict[str, int]()
    for message in consumer.consume(most, seconds):
        error, key = message.error(), key_of(message)
        if error is None:
            found.append(message)
            places[key] = cast("int", message.offset()) + 1
        elif error.code() in LOST_POSITIONS:
            assert recorder.loses, f"{key}: {error}"
            lost[key] = recorder.bound(key)
    if lost:  # no seek: librdkafka has stopped these partitions and dropped their fetched records
        moved.update(lost)
        for key, bound in lost.items():
            places[key] = min(places.get(key, 0), bound)
        consumer.assign([place_of(key, places.get(key, 0)) for key in recorder.keys])
    return found
