"""The composition root: the one file that names concrete classes. Builds a node, runs it, takes it down in order.

Start: lock the directory, recover the metadata log, claim this start, recover the partitions, open the doors, then probe
the store in the background (a store that does not answer stops only uploads and cold reads). Stop, at SIGTERM or SIGINT:
unready at once, doors closed, answers in flight finished, everything flushed, clean-shutdown marker.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shlex
import shutil
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from service.beginning import StoppedBeforeStart
from service.broker.api.core import BrokerCore
from service.collecting import collect_a_few_at_a_time
from service.descriptors import RESERVED, Descriptors, raise_limit, shares
from service.doors import connection_limits, gateway_settings, grpc_connections
from service.http import Readiness, serve_http
from service.memory import keep_freed_blocks
from service.node import Node
from service.observability.scrape import Scraper
from service.observability.stats import node_stats
from service.scheduling import shorten_slice
from service.settings import NodeSettings
from service.supervisor import supervised
from storage_tiers import events
from storage_tiers.clock import SystemClock, SystemRng
from storage_tiers.cold.process.launcher import ExecLauncher
from storage_tiers.errors import InvalidConfig, LogError
from storage_tiers.files import DescriptorReserve, OsFiles, replace_file

if TYPE_CHECKING:
    from grpc_api.servicers.server import GrpcServer
    from kafka_gateway.gateway_settings import GatewaySettings

log = logging.getLogger("tidelog")


def run(settings: NodeSettings) -> int:
    """Runs a node until it is told to stop; the exit code. Raises LogError if it cannot start."""
    import uvloop

    events.set_up(settings.log_level, settings.log_format)
    shorten_slice()
    keep_freed_blocks()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(settings))
    except LogError as error:
        if settings.log_format == "text":
            raise
        events.error(log, "node.not_started", error=error)
        return 1


async def _serve(settings: NodeSettings) -> int:
    from kafka_gateway.gateway_settings import GatewaySettings, listen
    from kafka_gateway.server import serve

    readiness = Readiness()
    stop = _stop_on_signals(readiness)
    clock = SystemClock()
    began = clock.monotonic()
    _say_starting(settings)
    limit, reserve = raise_limit(), DescriptorReserve(RESERVED)
    reserve.fill()
    async with AsyncExitStack() as stack:
        # First up and last down, so that it can say "not yet" and "no more".
        started: list[Node] = []

        async def stats() -> Mapping[str, object]:
            return await node_stats(started[0]) if started else {}

        scrapers: list[Scraper] = []

        def scrape(open_metrics: bool) -> Awaitable[bytes] | None:
            return scrapers[0].scrape(open_metrics=open_metrics) if scrapers else None

        most = shares(limit, partitions=0, max_connections=0).http
        http = await serve_http(readiness, stats, scrape, settings.listen, settings.http_port, connections=most)
        stack.push_async_callback(http.stop)
        listener = _taken(listen, GatewaySettings(host=settings.listen, port=settings.port))
        grpc_port = stack.enter_context(_held_for_grpc(settings))
        try:
            node = await Node.open(
                settings,
                readiness,
                stop,
                kafka_port=listener.getsockname()[1],
                files=OsFiles(reserve),
                clock=clock,
                rng=SystemRng(),
                launcher=ExecLauncher(settings.log_format),
                descriptors=Descriptors(limit, reserve),
            )
        except StoppedBeforeStart:
            return _stopped(0, 0)
        stack.push_async_callback(node.close)
        started.append(node)
        core: BrokerCore = node.core
        gateway = await serve(core, gateway_settings(node), listener)
        stack.push_async_callback(gateway.stop)
        scrapers.append(Scraper(node, gateway))
        node.metadata.subscribe(
            lambda image, _: gateway.limit_connections(connection_limits(node, node.configs.broker(image)))
        )
        grpc = await _serve_grpc(core, settings, grpc_port, grpc_connections(node))
        stack.push_async_callback(grpc.stop)
        node.configs.announce("tidelog.grpc.listener", f"{settings.listen}:{grpc.port}")
        node.configs.announce("tidelog.http.listener", f"{settings.listen}:{http.port}")
        readiness.recovered = True
        endpoints: dict[str, str | int] = {
            "kafka": f"{settings.listen}:{gateway.port}",
            "grpc": f"{settings.listen}:{grpc.port}",
            "http": f"{settings.listen}:{http.port}",
            "pid": os.getpid(),
        }
        replace_file(OsFiles(), str(settings.data_dir / "endpoints.json"), json.dumps(endpoints, indent=1).encode())
        _announce(settings, node, endpoints, round((clock.monotonic() - began) * 1000))
        collect_a_few_at_a_time()
        code = await _until_stopped(node, stop)
        readiness.stopping = True
        began = clock.monotonic()
        events.info(log, "node.stopping", connections=gateway.connections)
    return _stopped(code, round((clock.monotonic() - began) * 1000))


def _stopped(code: int, took_ms: int) -> int:
    events.info(log, "node.stopped", code=code, ms=took_ms)
    return code


async def _until_stopped(node: Node, stop: asyncio.Event) -> int:
    try:
        async with supervised(node.workers(), node.clock):
            access = asyncio.get_running_loop().create_task(node.run_store_access(), name="store access")
            access.add_done_callback(lambda task: _ended(node, task))
            await stop.wait()
            access.cancel()
    except* LogError as failures:
        first = failures.exceptions[0]
        node.end(first if isinstance(first, LogError) else LogError(str(first)))
    if node.fatal is not None:
        events.error(log, "node.must_stop", error=node.fatal)
        return 1
    return 0


def _ended(node: Node, task: asyncio.Task[None]) -> None:
    """Claiming the store either succeeds or says why this node must not run."""
    failure = None if task.cancelled() else task.exception()
    if isinstance(failure, LogError):
        node.end(failure)
    elif failure is not None:
        events.error(log, "store.defect", defect=failure)
        node.end(LogError(f"claiming the store failed: {failure!r}"))


def _taken(listen: Callable[[GatewaySettings], socket.socket], wanted: GatewaySettings) -> socket.socket:
    try:
        return listen(wanted)
    except OSError as error:
        raise InvalidConfig(
            f"cannot listen on {wanted.host}:{wanted.port}: {error.strerror}; choose another --port, or stop who has it"
        ) from None


def _held_for_grpc(settings: NodeSettings) -> socket.socket:
    from grpc_api.servicers.server import hold_port

    return hold_port(settings.listen, settings.grpc_port)


async def _serve_grpc(core: BrokerCore, settings: NodeSettings, held: socket.socket, connections: int) -> GrpcServer:
    from grpc_api.servicers.server import serve_grpc

    with held:
        return await serve_grpc(core, settings.listen, held.getsockname()[1], connections=connections)


def _stop_on_signals(readiness: Readiness) -> asyncio.Event:
    stop = asyncio.Event()

    def told(name: str) -> None:
        events.info(log, "node.told_to_stop", signal=name)
        readiness.stopping = True
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told, number.name)
    return stop


def _say_starting(settings: NodeSettings) -> None:
    events.info(
        log,
        "node.starting",
        version=version("tidelog"),
        pid=os.getpid(),
        node_id=settings.node_id,
        data_dir=str(Path(settings.data_dir).resolve()),
        store=settings.store,
        settings=len(settings.broker),
    )


def _announce(settings: NodeSettings, node: Node, endpoints: dict[str, str | int], took_ms: int) -> None:
    kafka, tidelog = endpoints["kafka"], _command()
    events.info(
        log,
        "node.listening",
        kafka=kafka,
        grpc=endpoints["grpc"],
        http=endpoints["http"],
        cluster_id=node.cluster_id,
        topics=len(node.metadata.image.topics),
        ms=took_ms,
    )
    if settings.log_format != "text":
        return  # nothing but objects then
    print(
        f"""tidelog listens
  Kafka   {kafka}
  gRPC    {endpoints["grpc"]}
  HTTP    {endpoints["http"]}  (/healthz, /readyz, /metrics, /stats)
  data    {Path(settings.data_dir).resolve()}
  store   {settings.store}
  cluster {node.cluster_id}

Talk to it:
  {tidelog} topic create demo --partitions 3 --bootstrap-server {kafka}
  echo hello | {tidelog} produce demo --bootstrap-server {kafka}
  {tidelog} consume demo --exit-at-end --bootstrap-server {kafka}
Stop it with Ctrl-C.""",
        flush=True,
    )


def _command() -> str:
    """How a shell in this directory finds the command: by its name, or by its path in an environment not activated."""
    beside = os.path.join(os.path.dirname(sys.executable), "tidelog")
    if shutil.which("tidelog") is not None or not os.path.exists(beside):
        return "tidelog"
    return shlex.quote(min(os.path.relpath(beside), beside, key=len))
