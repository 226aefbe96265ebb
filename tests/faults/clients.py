"""Real clients as the fault tests use them: producers that never give up, readers of whole topics, and waiting.

The producers are librdkafka's, one thread each, and they outlive every restart of the node. A `History` has all that is sent,
acknowledged or read.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import cast

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tests.history.passes import Ack, Content, History, Pass, Seen, Send
from tests.support.node import Node

#: Rolls and offloads small segments soon, keeps no local copy of what the bucket holds, and never deletes.
TIERED = {
    "internal.segment.bytes": str(32 << 10),
    "local.retention.bytes": "1",
    "retention.ms": "-1",
    "tidelog.tier.max.lag.ms": "300",
}
#: Nodes die here all the time: their clients retry at once and print only fatal errors.
QUICK_RETRIES = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
    "log_level": 2,
}
WAIT_S = 60.0
_PAUSE_S = 0.01


def until(condition: Callable[[], object], what: str, seconds: float = WAIT_S) -> None:
    """Returns once `condition` holds; AssertionError if it does not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(_PAUSE_S)


def create_topic(node: Node, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    wanted = NewTopic(topic, partitions, 1, config=dict(TIERED if configs is None else configs))
    admin.create_topics([wanted])[topic].result(30)


def delete_topic(node: Node, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.delete_topics([topic])[topic].result(30)


def alter_topic(node: Node, topic: str, configs: Mapping[str, str]) -> None:
    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in configs.items()]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.incremental_alter_configs([resource], request_timeout=10)[resource].result(30)


def delete_records(node: Node, topic: str, before: int, *, partition: int = 0) -> int:
    """Deletes the records below `before`; returns the log start that the node answers."""
    admin = AdminClient({"bootstrap.servers": node.kafka})
    wanted = TopicPartition(topic, partition, before)
    deleted = admin.delete_records([wanted], request_timeout=30)[wanted].result(30)
    return int(deleted.low_watermark)


def local_bytes(node: Node, topic: str, partitions: int = 1) -> int:
    """The bytes of all segments on the node's disk."""
    size = 0
    for partition in range(partitions):
        for file in node.partition_dir(topic, partition).glob("*.log"):
            with contextlib.suppress(FileNotFoundError):  # evicted meanwhile
                size += file.stat().st_size
    return size


def seal(node: Node, topic: str, *, wait: bool = True, seconds: float = WAIT_S) -> None:
    """Like `tidelog topic seal`: offloads everything written so far."""
    import grpc

    from grpc_api.proto.topics_pb2 import SealRequest
    from grpc_api.proto.topics_pb2_grpc import TopicsStub

    with grpc.insecure_channel(node.grpc) as channel:
        request = SealRequest(topic=topic, wait=wait)
        request.timeout.FromSeconds(int(seconds))
        TopicsStub(channel).Seal(request, timeout=seconds)


class Load:
    """Producers of one topic; `idempotent` and `plain` say how many of each. `more` lets them send; otherwise they wait.

    All use acks=all and keep several requests in flight, so a plain one may repeat and reorder records. The names of
    producers, and so their keys, begin with `prefix`. The sizes of values, in bytes, come from `sizes`.
    """

    def __init__(
        self,
        history: History,
        bootstrap: str,
        topic: str,
        partitions: int,
        *,
        idempotent: int,
        plain: int,
        rng: random.Random,
        prefix: str = "",
        sizes: range = range(20, 600),
    ) -> None:
        self._sizes = sizes
        self.history = history
        self.exactly_once = tuple(f"{prefix}idempotent-{i}" for i in range(idempotent))
        self.failures: list[str] = []
        self.granted = self.acknowledged = 0
        self._topic = topic
        self._partitions = partitions
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._allowed: dict[str, threading.Semaphore] = {}
        self._threads: list[threading.Thread] = []
        for name in (*self.exactly_once, *(f"{prefix}plain-{i}" for i in range(plain))):
            self._allowed[name] = threading.Semaphore(0)
            producer = self._producer(bootstrap, idempotent=name in self.exactly_once)
            arguments = (name, producer, random.Random(rng.random()))
            self._threads.append(threading.Thread(target=self._send_all, args=arguments, name=name, daemon=True))

    def _producer(self, bootstrap: str, *, idempotent: bool) -> Producer:
        def failed(error: KafkaError) -> None:
            if error.fatal():
                self.failures.append(f"fatal: {error}")

        return Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": idempotent,
                "acks": "all",
                "linger.ms": 2,
                "batch.num.messages": 40,
                "max.in.flight": 5,
                "queue.buffering.max.messages": 1000,
                "message.timeout.ms": 0,
                "error_cb": failed,
                **QUICK_RETRIES,
            }
        )

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        for allowed in self._allowed.values():
            allowed.release()
        for thread in self._threads:
            thread.join()

    def more(self, records: int) -> None:
        """Lets each producer send this many more records."""
        self.granted += records * len(self._allowed)
        for allowed in self._allowed.values():
            allowed.release(records)

    def settle(self) -> None:
        """Returns once everything sent is acknowledged."""
        until(
            lambda: self.failures or self.acknowledged == self.granted,
            f"all of {self.granted} sends are acknowledged",
        )
        assert not self.failures, self.failures

    def _send_all(self, name: str, producer: Producer, rng: random.Random) -> None:
        number = 0
        while True:
            while not self._allowed[name].acquire(timeout=_PAUSE_S):
                producer.poll(0)
            if self._ending.is_set():
                producer.purge()
                producer.flush(5)
                return
            self._send(name, number, producer, rng)
            number += 1

    def _send(self, name: str, number: int, producer: Producer, rng: random.Random) -> None:
        key = f"{name}:{number}".encode()
        body = rng.randbytes(rng.choice(self._sizes))
        content = Content(key, key + b" " + body, 1_700_000_000_000 + number, (("n", b"%d" % number),))
        partition = number % self._partitions
        with self._lock:
            self.history.sends[key] = Send(name, number, partition, content)
        while True:
            try:
                producer.produce(
                    self._topic,
                    key=key,
                    value=content.value,
                    partition=partition,
                    timestamp=content.timestamp,
                    headers=list(content.headers),
                    on_delivery=self._delivered,
                )
                break
            except BufferError:
                producer.poll(_PAUSE_S)
                if self._ending.is_set():
                    return
        producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        key = cast("bytes", message.key())
        with self._lock:
            if error is None:
                self.acknowledged += 1
                offset = message.offset()
                self.history.acks.append(Ack(key, offset if offset is not None and offset >= 0 else None))
            elif not self._ending.is_set():
                self.failures.append(f"{key!r}: {error}")


def read_everything(bootstrap: str, topic: str, partitions: int, *, acks: int = 0, seconds: float = WAIT_S) -> Pass:
    """Reads all partitions from their beginning to the end offsets at the time of the call."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,
            **QUICK_RETRIES,
        }
    )
    try:
        starts: dict[int, int] = {}
        ends: dict[int, int] = {}
        for partition in range(partitions):
            starts[partition], ends[partition] = consumer.get_watermark_offsets(
                TopicPartition(topic, partition), timeout=seconds
            )
        consumer.assign([TopicPartition(topic, partition, start) for partition, start in starts.items()])
        found: dict[int, list[Seen]] = {partition: [] for partition in range(partitions)}
        missing = {partition for partition in ends if starts[partition] < ends[partition]}
        deadline = time.monotonic() + seconds
        while missing:
            assert time.monotonic() < deadline, (
                f"reading {topic} to its ends {ends} stood still at "
                f"{ {p: records[-1].offset if records else None for p, records in found.items()} }"
            )
            for message in consumer.consume(2000, timeout=0.2):
                error = message.error()
                assert error is None, f"{message.partition()}/{message.offset()}: {error}"
                seen = _seen(message)
                partition = cast("int", message.partition())
                if seen.offset < ends[partition]:
                    found[partition].append(seen)
                if seen.offset >= ends[partition] - 1:
                    missing.discard(partition)
        return Pass(acks, found)
    finally:
        consumer.close()


def _seen(message: Message) -> Seen:
    key, value = cast("bytes", message.key()), cast("bytes", message.value())
    offset = cast("int", message.offset())
    epoch = message.leader_epoch()
    headers = cast("list[tuple[str, bytes]]", message.headers() or [])
    return Seen(offset, -1 if epoch is None else epoch, Content(key, value, message.timestamp()[1], tuple(headers)))
