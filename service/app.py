"""The composition root: the one file that names concrete classes. Builds a node, runs it, takes it down in order.

Start: lock the directory, recover the metadata log, claim this start, recover the partitions, open the doors, then probe
the store in the background (a store that does not answer stops only uploads and cold reads). Stop, at SIGTERM or SIGINT:
unready at once, doors closed, answers in flight finished, everything flushed, clean-shutdown marker.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Mapping
from contextlib import AsyncExitStack
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from grpc_api.contract.topics import Endpoint
from grpc_api.listening import listen
from service.announcing import Addresses, announce
from service.beginning import StoppedBeforeStart
from service.broker.api.core import BrokerCore
from service.collecting import collect_a_few_at_a_time
from service.descriptors import RESERVED, Descriptors, raise_limit, shares
from service.doors import connection_limits, gateway_settings, grpc_connections
from service.http import Readiness, serve_http
from service.listeners import Listeners, host_and_port, url_of
from service.memory import keep_freed_blocks
from service.node import Node
from service.node_place import check, listeners_of
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
    from kafka_gateway.server import serve

    readiness = Readiness()
    stop = _stop_on_signals(readiness)
    clock = SystemClock()
    began = clock.monotonic()
    _say_starting(settings)
    check(settings)
    listeners = listeners_of(settings)
    http_host, http_port = host_and_port(settings.http_listener)
    grpc_host, grpc_port = host_and_port(settings.grpc_listener)
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
        http = await serve_http(readiness, stats, scrape, http_host, http_port, connections=most)
        stack.push_async_callback(http.stop)
        sockets = {each.listener: stack.enter_context(_taken(each)) for each in listeners.bound}
        listeners = await _resolved(listeners, sockets)
        held = stack.enter_context(_held_for_grpc(grpc_host, grpc_port))
        try:
            node = await Node.open(
                settings,
                readiness,
                stop,
                listeners=listeners,
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
        gateway = await serve(core, gateway_settings(node), sockets)
        stack.push_async_callback(gateway.stop)
        scrapers.append(Scraper(node, gateway))
        node.metadata.subscribe(
            lambda image, _: gateway.limit_connections(connection_limits(node, node.configs.broker(image)))
        )
        grpc = await _serve_grpc(core, grpc_host, held, grpc_connections(node))
        stack.push_async_callback(grpc.stop)
        addresses = Addresses.of(listeners, grpc=(grpc_host, grpc.port), http=(http_host, http.port))
        node.configs.announce("tidelog.grpc.listener", addresses.grpc)
        node.configs.announce("tidelog.http.listener", addresses.http)
        readiness.recovered = True
        replace_file(OsFiles(), str(settings.data_dir / "endpoints.json"), addresses.document())
        announce(
            settings,
            addresses,
            node.cluster_id,
            len(node.metadata.image.topics),
            round((clock.monotonic() - began) * 1000),
        )
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


def _taken(at: Endpoint) -> socket.socket:
    try:
        return listen(at.host, at.port)
    except OSError as error:
        raise InvalidConfig(
            f"cannot listen on {url_of(at)} for Kafka's clients: {error.strerror}; stop the process using it, or choose "
            "another address in --listeners"
        ) from None


async def _resolved(listeners: Listeners, sockets: Mapping[str, socket.socket]) -> Listeners:
    """With the ports that the sockets have, and this machine's name where clients are told it."""
    machine = await asyncio.to_thread(socket.getfqdn) if listeners.needs_machine else ""
    return listeners.resolved({name: each.getsockname()[1] for name, each in sockets.items()}, machine)


def _held_for_grpc(host: str, port: int) -> socket.socket:
    from grpc_api.servicers.server import hold_port

    return hold_port(host, port)


async def _serve_grpc(core: BrokerCore, host: str, held: socket.socket, connections: int) -> GrpcServer:
    from grpc_api.servicers.server import serve_grpc

    with held:
        return await serve_grpc(core, host, held.getsockname()[1], connections=connections)


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
