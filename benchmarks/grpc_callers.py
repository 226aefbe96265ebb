"""What callers that ask gRPC for too much cost a node and its other callers: memory at its peak, and the longest wait.

  python -m benchmarks.grpc_callers [--only WORD]

Each row is a node of its own, a process of callers that misbehave in one way, and a process that asks for the cluster's
description meanwhile, again and again. `peak` is the node's resident memory; `longest` is the slowest answer that the third
process got, `at rest` the slowest before the callers came, on the same machine a moment earlier; `processors` the node's use.

Not promised: that a wait is the node's doing. Three processes share the machine's processors.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.node import Node

MIB = 1 << 20
#: Seconds of each scenario, and of the rest before it.
SECONDS, REST_SECONDS = 8.0, 2.0
#: Records in the topic that is read, in batches of a MiB.
FILLED_BYTES = 64 * MIB


class Row(NamedTuple):
    name: str
    before: int
    peak: int
    after: int
    rest_ms: float
    longest_ms: float
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
    """Begins `count` calls over a channel for each 100; stops this process before it reads, or reads them all."""
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


# --- the one who is not to be held up ----------------------------------------------------------------------------------
def ask_meanwhile(address: str, told: Connection) -> None:
    asyncio.run(_ask_meanwhile(address, told))


async def _ask_meanwhile(address: str, told: Connection) -> None:
    from grpc_api.channel import open_channel
    from grpc_api.proto import topics_pb2
    from grpc_api.proto.topics_pb2_grpc import TopicsStub

    async with open_channel(address) as channel:
        topics: Any = TopicsStub(channel)
        await topics.Cluster(topics_pb2.ClusterRequest())
        told.send("ready")
        longest = 0.0
        while True:
            began = time.perf_counter()
            await topics.Cluster(topics_pb2.ClusterRequest())
            longest = max(longest, time.perf_counter() - began)
            await asyncio.sleep(0.002)
            if told.poll():
                if told.recv() == "end":
                    return
                told.send(longest * 1000)
                longest = 0.0


# --- one row -----------------------------------------------------------------------------------------------------------
def measured(name: str, directory: Path) -> Row:
    with Node(directory) as node, _asking(node.grpc) as ask:
        asyncio.run(_fill(node.grpc))
        ask()
        time.sleep(REST_SECONDS)
        rest_ms, before = ask(), resident(node)
        ours, theirs = multiprocessing.Pipe()
        caller = multiprocessing.Process(target=misbehave, args=(name, node.grpc, theirs))
        caller.start()
        peak, began = 0, processor_seconds(node)
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            peak = max(peak, resident(node))
            time.sleep(0.02)
        longest_ms = ask()
        processors = (processor_seconds(node) - began) / SECONDS
        answers = ours.recv() if ours.poll(2.0 if SCENARIOS[name][2] else 0) else "stopped"
        caller.kill()
        caller.join()
        time.sleep(REST_SECONDS)
        ask()
        return Row(name, before, peak, resident(node), rest_ms, longest_ms, processors, answers)


@contextmanager
def _asking(address: str) -> Iterator[Callable[[], float]]:
    """Calls answer the longest wait, in ms, since the call before."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=ask_meanwhile, args=(address, theirs))
    process.start()
    try:
        ours.recv()

        def longest() -> float:
            ours.send("longest")
            return float(ours.recv())

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
    """Of the node so far, user and system."""
    assert node.process is not None
    with open(f"/proc/{node.process.pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", metavar="WORD")
    only: str = parser.parse_args().only
    print(f"{'':48} {'before':>8} {'peak':>8} {'after':>8} {'at rest':>10} {'longest':>10} {'processors':>10}  answers")
    for name in SCENARIOS:
        if only in name:
            with tempfile.TemporaryDirectory() as directory:
                row = measured(name, Path(directory))
            sizes = " ".join(f"{each // MIB:>4} MiB" for each in (row.before, row.peak, row.after))
            print(
                f"{name:48} {sizes} {row.rest_ms:>7.1f} ms {row.longest_ms:>7.1f} ms {row.processors:>10.2f}  {row.answers}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    sys.exit(main())
