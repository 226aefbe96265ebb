"""A process that requests more than it reads: it begins calls, reads one answer, and stops itself with SIGSTOP.

python -m tests.grpc_api.stopped_caller ADDRESS fetch|stream COUNT
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import grpc.aio

from grpc_api.proto import log_pb2 as pb
from grpc_api.proto.log_pb2_grpc import LogStub


async def main(address: str, kind: str, count: int) -> None:
    wanted = pb.FetchPartition(topic="t", partition=0, max_bytes=32 << 20)
    request = pb.FetchRequest(partitions=[wanted], min_bytes=1, max_bytes=32 << 20)
    options = [("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        await channel.channel_ready()
        log: Any = LogStub(channel)
        calls = [log.Fetch(request) if kind == "fetch" else log.FetchStream(request) for _ in range(count)]
        answered = asyncio.ensure_future(calls[0] if kind == "fetch" else calls[0].read())
        await answered
        os.kill(os.getpid(), signal.SIGSTOP)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
