"""Serves an in-memory core on a port: `python -m tests.kafka_gateway.run_memory_core PORT DIRECTORY`."""

from __future__ import annotations

import asyncio
import gc
import os
import sys

import uvloop

from grpc_api.contract.topics import Endpoint
from kafka_gateway.options import Options
from kafka_gateway.server import serve
from kafka_gateway.settings import GatewaySettings
from tests.kafka_gateway.memory_core import MemoryCore


async def main(port: int, directory: str) -> None:
    os.makedirs(directory, exist_ok=True)
    core = MemoryCore(directory)
    server = await serve(core, Options(GatewaySettings((Endpoint("PLAINTEXT", "127.0.0.1", port),))))
    core.port = server.port
    gc.collect()
    gc.freeze()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), sys.argv[2]))
