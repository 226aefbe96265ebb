"""The part `callers`: measures how much memory gRPC callers with excessive requests cost a node, and how long they make other
callers wait.

Each scenario has its own node, a process of callers that misbehave in one way, and the probe, a process that repeatedly
requests the cluster's description. The longest stall is the slowest response to the probe. Further rows show the most processor
time that the node's event loop used during any one request of the probe, and the slowest response just before the callers
start.

A stall is not necessarily the node's fault. Three processes share the machine's processors.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.processor import LoopTime
from benchmarks.table import MOST_IN_A_CALLERS_STALL, Table
from tests.support.node import Node

MIB = 1 << 20
#: Processes start with a new interpreter, because gRPC does not survive a fork.
_PROCESSES = multiprocessing.get_context("spawn")
#: Seconds of each scenario, and of the pause before and after it.
SECONDS, REST_SECONDS = 8.0, 2.0
#: Bytes of records in the topic that is read, in batches of 1,000 records of 1,000 bytes.
FILLED_BYTES = 64 * MIB


class Row(NamedTuple):
    name: str
    before: int
    peak: int
    after: int
    rest_ms: float
    longest_ms: float
    processor_ms: float
    processors: float
    answers: str


# --- the callers, in a process of their own -----------------------------------------------------------------------------
async def unary_fetches(address: str, count: int, reads: bool) -> str:
    return await _all(address, count, reads, lambda log: log.Fetch(_fetch(32 * MIB)))


async def produces(address: str, count: int, reads: bool) -> str:
    from grpc_api.proto import log_pb2 as pb

    batch = bytes(60 * MIB)
    request = pb.ProduceRequest(appends=[pb.Append(topic="big", partition=0, batch=batch)])
    return await _all(address, count, reads, lambda log: log.Produce(request))


async def streams(address: str, count: int, reads: bool) -> str:
    return await _all(address, count, reads, lambda log: log.FetchStream(_fetch(32 * MIB)))


async def spinning_streams(address: str, count: int, reads: bool) -> str:
    from grpc_api.proto import log_pb2 as pb

    wanted = [pb.FetchPartition(topic="wide", partition=each, max_bytes=MIB) for each in range(100)]
    request = pb.FetchRequest(partitions=wanted, max_wait_ms=100, min_bytes=1, max_bytes=MIB)

    async def drained(log: Any) -> None:
        call = log.FetchStream(request)
        while await call.read() is not None:
            pass

    return await _all(address, count, reads, drained)


async def _all(address: str, count: int, reads: bool, call: Callable[[Any], Any]) -> str:
    """Begins `count` calls, at most 100 on a channel. If `reads` is True, reads the answers for at most SECONDS. Otherwise
    suspends this process half a second after the calls begin."""
    import grpc
    import grpc.aio

    from grpc_api.proto.log_pb2_grpc import LogStub

    options = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.http2.lookahead_bytes", 4 * MIB),
    ]
    channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(-(-count // 100))]
    outcomes: dict[str, int] = {}

    async def one(number: int) -> None:
        try:
            answer = call(LogStub(channels[number % len(channels)]))
            await (answer if hasattr(answer, "__await__") else _first(answer))
            name = "OK"
        except grpc.aio.AioRpcError as error:
            name = error.code().name
        outcomes[name] = outcomes.get(name, 0) + 1

    calls = [asyncio.ensure_future(one(number)) for number in range(count)]
    if not reads:
        await asyncio.sleep(0.5)
        os.kill(os.getpid(), signal.SIGSTOP)
    await asyncio.wait(calls, timeout=SECONDS)
    return ", ".join(f"{count} {name}" for name, count in sorted(outcomes.items())) or "none answered"


async def _first(stream: Any) -> None:
    await stream.read()
    await asyncio.Event().wait()


SCENARIOS: dict[str, tuple[Callable[[str, int, bool], Any], int, bool]] = {
    "100 fetches of 32 MiB, the caller stopped": (unary_fetches, 100, False),
    "200 fetches of 32 MiB, read": (unary_fetches, 200, True),
    "40 produces of 60 MiB": (produces, 40, True),
    "500 streams, unread": (streams, 500, False),
    "1,000 streams of 100 partitions, every 100 ms": (spinning_streams, 1000, True),
}


def misbehave(name: str, address: str, told: Connection) -> None:
    call, count, reads = SCENARIOS[name]
    told.send(asyncio.run(call(address, count, reads)))


# --- the caller that must not wait --------------------------------------------------------------------------------------
def ask_meanwhile(address: str, pid: int, told: Connection) -> None:
    asyncio.run(_ask_meanwhile(address, pid, told))


async def _ask_meanwhile(address: str, pid: int, told: Connection) -> None:
    from grpc_api.channel import open_channel
    from grpc_api.proto import topics_pb2
    from grpc_api.proto.topics_pb2_grpc import TopicsStub

    spent = LoopTime(pid)
    async with open_channel(address) as channel:
        topics: Any = TopicsStub(channel)
        await topics.Cluster(topics_pb2.ClusterRequest())
        told.send("ready")
        longest = processor = 0.0
        while True:
            before, began = spent.seconds(), time.perf_counter()
            await topics.Cluster(topics_pb2.ClusterRequest())
            longest = max(longest, time.perf_counter() - began)
            processor = max(processor, spent.seconds() - before)
            await asyncio.sleep(0.002)
            if told.poll():
                told.recv()
                told.send((longest * 1000, processor * 1000))
                longest = processor = 0.0


# --- one row -----------------------------------------------------------------------------------------------------------
def measure(table: Table, directory: Path, *, only: str = "") -> None:
    most = 0.0
    for name in SCENARIOS:
        if only not in name:
            continue
        row = measured(name, directory / f"callers-{len(table.rows)}")
        for what, unit, value in (
            ("peak of resident memory", "MB", row.peak / 1e6),
            ("resident memory afterwards", "MB", row.after / 1e6),
            ("longest stall at rest", "ms", row.rest_ms),
            ("longest stall", "ms", row.longest_ms),
            ("processor time in a stall", "ms", row.processor_ms),
            ("processors", "", row.processors),
        ):
            table.add("tidelog", f"{name}: {what}", unit, value)
        most = max(most, row.processor_ms)
        print(f"{row}", file=sys.stderr, flush=True)
        table.notes.append(f"{name}: {row.answers}; resident memory before: {row.before / 1e6:.0f} MB.")
    table.add("tidelog", MOST_IN_A_CALLERS_STALL, "ms", most)


def measured(name: str, directory: Path) -> Row:
    with Node(directory) as node, _asking(node) as ask:
        asyncio.run(_fill(node.grpc))
        ask()
        time.sleep(REST_SECONDS)
        (rest_ms, _), before = ask(), resident(node)
        ours, theirs = _PROCESSES.Pipe()
        caller = _PROCESSES.Process(target=misbehave, args=(name, node.grpc, theirs))
        caller.start()
        peak, began = 0, processor_seconds(node)
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            peak = max(peak, resident(node))
            time.sleep(0.02)
        longest_ms, processor_ms = ask()
        processors = (processor_seconds(node) - began) / SECONDS
        answers = ours.recv() if ours.poll(2.0 if SCENARIOS[name][2] else 0) else "stopped"
        caller.kill()
        caller.join()
        time.sleep(REST_SECONDS)
        return Row(name, before, peak, resident(node), rest_ms, longest_ms, processor_ms, processors, answers)


@contextmanager
def _asking(node: Node) -> Iterator[Callable[[], tuple[float, float]]]:
    """Yields a function that returns two figures in ms for the time since its last call: the longest wait, and the most
    processor time of the node's event loop in one wait."""
    assert node.process is not None
    ours, theirs = _PROCESSES.Pipe()
    process = _PROCESSES.Process(target=ask_meanwhile, args=(node.grpc, node.process.pid, theirs))
    process.start()
    try:
        ours.recv()

        def longest() -> tuple[float, float]:
            ours.send("longest")
            longest_ms, processor_ms = ours.recv()
            return float(longest_ms), float(processor_ms)

        yield longest
    finally:
        process.kill()
        process.join()


async def _fill(address: str) -> None:
    from grpc_api.channel import open_channel
    from grpc_api.proto import log_pb2 as pb
    from grpc_api.proto import topics_pb2
    from grpc_api.proto.log_pb2_grpc import LogStub
    from grpc_api.proto.topics_pb2_grpc import TopicsStub
    from storage_tiers.records.builder import NewRecord, build_batch

    batch = build_batch([NewRecord(None, os.urandom(1000)) for _ in range(1000)])
    async with open_channel(address) as channel:
        big = topics_pb2.NewTopic(name="big", partitions=1)
        wide = topics_pb2.NewTopic(name="wide", partitions=100)
        await TopicsStub(channel).Create(topics_pb2.CreateTopicsRequest(topics=[big, wide]))
        for _ in range(FILLED_BYTES // len(batch)):
            append = pb.Append(topic="big", partition=0, batch=batch)
            answer = await LogStub(channel).Produce(pb.ProduceRequest(appends=[append]))
            assert not answer.results[0].HasField("error"), answer.results[0].error.message


def _fetch(size: int) -> Any:
    from grpc_api.proto import log_pb2 as pb

    wanted = pb.FetchPartition(topic="big", partition=0, max_bytes=size)
    return pb.FetchRequest(partitions=[wanted], max_wait_ms=1000, min_bytes=1, max_bytes=size)


def resident(node: Node) -> int:
    assert node.process is not None
    with open(f"/proc/{node.process.pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def processor_seconds(node: Node) -> float:
    """The seconds of user and system time that the node has used so far."""
    assert node.process is not None
    with open(f"/proc/{node.process.pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
