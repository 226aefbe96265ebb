"""A group's member with the same methods for every client, as `test_members.py` uses it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from tests.support.children import start_child
from tests.support.node import Node
from tests.support.talker import Talker

PATIENCE_S = 60.0
#: Programs of kafka-python and aiokafka that print the number of their partitions, and poll until they are killed. Each knows
#: the topic before it joins, because a second join that is interrupted by the end of a poll loses its assignment
#: (docs/clients.md, traps).
KAFKA_PYTHON = """
import sys
from kafka import KafkaConsumer
member = KafkaConsumer(bootstrap_servers=sys.argv[1], group_id=sys.argv[2], session_timeout_ms=2000,
                       heartbeat_interval_ms=300)
member.partitions_for_topic(sys.argv[3])
member.subscribe([sys.argv[3]])
while True:
    member.poll(100)
    print(len(member.assignment()), flush=True)
"""
AIOKAFKA = """
import asyncio, sys
from aiokafka import AIOKafkaConsumer
async def main():
    member = AIOKafkaConsumer(sys.argv[3], bootstrap_servers=sys.argv[1], group_id=sys.argv[2], session_timeout_ms=2000,
                              heartbeat_interval_ms=300)
    await member.start()
    while True:
        await member.getmany(timeout_ms=100)
        print(len(member.assignment()), flush=True)
asyncio.run(main())
"""


class Member(Protocol):
    """A member of a group, subscribed to one topic or to the pattern `/…/`. It reads from the beginning, and does not commit by
    itself."""

    @property
    def WAYS(self) -> tuple[str, ...]:  # noqa: N802 - a constant of each class
        """The ways in which the client can commit."""

    def share(self, each: int) -> list[str]:
        """Waits until the member has `each` partitions. Returns their names as `topic-number`, sorted."""

    def read(self, count: int) -> list[tuple[int, int]]:
        """Reads at least this many records; returns the partition and offset of each."""

    def commit(self, how: str = "sync") -> None:
        """Commits the records read so far; `how` is one of WAYS."""

    def commit_offsets(self, offsets: Mapping[int, int]) -> None: ...

    def seek(self, partition: int, offset: int) -> None: ...

    def pause(self, partition: int) -> None: ...

    def resume(self, partition: int) -> None: ...

    def close(self) -> None: ...


def until(step: Callable[[], object], condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        step()


class KafkaPython:
    WAYS = ("sync", "async")

    def __init__(self, node: Node, group: str, topic: str, instance: str | None = None) -> None:
        from kafka import KafkaConsumer

        self.topic = topic
        self._found: list[tuple[int, int]] = []
        self._consumer = KafkaConsumer(
            bootstrap_servers=node.kafka,
            group_id=group,
            group_instance_id=instance,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=300,
        )
        if topic.startswith("/"):
            self._consumer.subscribe(pattern=topic.strip("/"))
        else:
            self._consumer.partitions_for_topic(topic)  # a leader that does not know its topic yet assigns nothing
            self._consumer.subscribe([topic])

    def poll(self) -> None:
        for partition, records in self._consumer.poll(100).items():
            self._found.extend((partition.partition, record.offset) for record in records)

    def share(self, each: int) -> list[str]:
        until(self.poll, lambda: len(self._consumer.assignment()) == each)
        return sorted(f"{place.topic}-{place.partition}" for place in self._consumer.assignment())

    def read(self, count: int) -> list[tuple[int, int]]:
        until(self.poll, lambda: len(self._found) >= count)
        found, self._found = self._found, []
        return found

    def commit(self, how: str = "sync") -> None:
        if how == "sync":
            self._consumer.commit()
            return
        done = self._consumer.commit_async()
        until(self.poll, lambda: bool(done.is_done))
        assert done.succeeded()

    def commit_offsets(self, offsets: Mapping[int, int]) -> None:
        from kafka import OffsetAndMetadata

        self._consumer.commit(
            {self._place(partition): OffsetAndMetadata(offset, "", -1) for partition, offset in offsets.items()}
        )

    def seek(self, partition: int, offset: int) -> None:
        self._consumer.seek(self._place(partition), offset)

    def pause(self, partition: int) -> None:
        self._consumer.pause(self._place(partition))

    def resume(self, partition: int) -> None:
        self._consumer.resume(self._place(partition))

    def close(self) -> None:
        self._consumer.close()

    def _place(self, partition: int) -> Any:
        from kafka import TopicPartition

        return TopicPartition(self.topic, partition)


class Aiokafka:
    """Its event loop runs only during a call, so its heartbeats wait between two calls."""

    WAYS = ("sync",)

    def __init__(self, node: Node, group: str, topic: str, instance: str | None = None) -> None:
        self.topic = topic
        self._found: list[tuple[int, int]] = []
        self._runner = asyncio.Runner()
        self._runner.run(self._start(node, group, topic, instance))

    async def _start(self, node: Node, group: str, topic: str, instance: str | None) -> None:
        from aiokafka import AIOKafkaConsumer

        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=node.kafka,
            group_id=group,
            group_instance_id=instance,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=300,
        )
        if topic.startswith("/"):
            self._consumer.subscribe(pattern=topic.strip("/"))
        else:
            self._consumer.subscribe([topic])
        await self._consumer.start()

    def poll(self) -> None:
        for partition, records in self._runner.run(self._consumer.getmany(timeout_ms=100)).items():
            self._found.extend((partition.partition, record.offset) for record in records)

    def share(self, each: int) -> list[str]:
        until(self.poll, lambda: len(self._consumer.assignment()) == each)
        return sorted(f"{place.topic}-{place.partition}" for place in self._consumer.assignment())

    def read(self, count: int) -> list[tuple[int, int]]:
        until(self.poll, lambda: len(self._found) >= count)
        found, self._found = self._found, []
        return found

    def commit(self, how: str = "sync") -> None:
        self._runner.run(self._consumer.commit())

    def commit_offsets(self, offsets: Mapping[int, int]) -> None:
        self._runner.run(
            self._consumer.commit({self._place(partition): offset for partition, offset in offsets.items()})
        )

    def seek(self, partition: int, offset: int) -> None:
        self._within(lambda: self._consumer.seek(self._place(partition), offset))

    def pause(self, partition: int) -> None:
        self._within(lambda: self._consumer.pause(self._place(partition)))

    def resume(self, partition: int) -> None:
        self._within(lambda: self._consumer.resume(self._place(partition)))

    def _within(self, act: Callable[[], None]) -> None:
        """Calls `act` on its event loop, because the call needs a running loop."""

        async def acting() -> None:
            act()

        self._runner.run(acting())

    def close(self) -> None:
        self._runner.run(self._consumer.stop())
        self._runner.close()

    def _place(self, partition: int) -> Any:
        from aiokafka import TopicPartition

        return TopicPartition(self.topic, partition)


class _Asked:
    """A member in a process of another language."""

    WAYS: tuple[str, ...] = ("sync",)

    def __init__(self, talker: Talker, topic: str, name: str) -> None:
        self._talker, self.topic, self._name = talker, topic, name

    def ask(self, command: str, **question: Any) -> Any:
        return self._talker.ask(command=command, name=self._name, topic=self.topic, **question)

    def seek(self, partition: int, offset: int) -> None:
        self.ask("seek", partition=partition, offset=offset)

    def pause(self, partition: int) -> None:
        self.ask("pause", partition=partition)

    def resume(self, partition: int) -> None:
        self.ask("resume", partition=partition)

    def commit_offsets(self, offsets: Mapping[int, int]) -> None:
        self.ask("commit", offsets=dict(offsets))

    def close(self) -> None:
        self.ask("close")


class Java(_Asked):
    WAYS = ("sync", "async")

    def __init__(self, talker: Talker, node: Node, group: str, topic: str, instance: str | None = None) -> None:
        super().__init__(talker, topic, f"{group}-{instance}")
        configs = {"group.id": group, "heartbeat.interval.ms": "300", "enable.auto.commit": "false"}
        configs |= {"auto.offset.reset": "earliest", "session.timeout.ms": "2000"}
        if instance is not None:
            configs |= {"group.instance.id": instance, "session.timeout.ms": "30000"}
        how = {"pattern": topic.strip("/")} if topic.startswith("/") else {"subscribe": topic}
        self.ask("open", bootstrap=node.kafka, configs=configs, **how)

    def share(self, each: int) -> list[str]:
        (own,) = self.ask("share", names=[self._name], each=each, whole=True)
        return sorted(own)

    def read(self, count: int) -> list[tuple[int, int]]:
        return [(record["partition"], record["offset"]) for record in self.ask("poll", count=count)]

    def commit(self, how: str = "sync") -> None:
        self.ask("commit", **{"async": how == "async"})


class Kafkajs(_Asked):
    """kafkajs passes records on as they come, so the test tells it which offsets to commit."""

    def __init__(self, talker: Talker, node: Node, group: str, topic: str, instance: str | None = None) -> None:
        assert instance is None, "kafkajs has no static members"
        super().__init__(talker, topic, group)
        self._ends: dict[int, int] = {}
        self.ask("open", bootstrap=node.kafka, group=group, session=2000)

    def share(self, each: int) -> list[str]:
        return list(self.ask("share", each=each))

    def read(self, count: int) -> list[tuple[int, int]]:
        found = [(partition, offset) for _, partition, offset in self.ask("read", count=count)]
        for partition, offset in found:
            self._ends[partition] = offset + 1
        return found

    def commit(self, how: str = "sync") -> None:
        self.commit_offsets(self._ends)


@contextmanager
def process(program: str, node: Node, group: str, topic: str, partitions: int) -> Iterator[subprocess.Popen[str]]:
    """Starts a member in its own process, and yields once the member has `partitions` partitions."""
    words = [sys.executable, "-W", "ignore", "-c", program, node.kafka, group, topic]
    running = start_child(words, stdout=subprocess.PIPE, text=True)
    try:
        assert running.stdout is not None
        for line in running.stdout:
            if line == f"{partitions}\n":
                break
        yield running
    finally:
        running.kill()
        running.communicate()
