"""The process: binds its addresses, opens a node, serves until it is stopped, and shuts down in order.

Start: lock the directory, recover the metadata log, register the broker, recover the partitions, start the servers, then claim
the store in the background. A store that does not answer stops only offloads and cold reads. Stop, at SIGTERM or SIGINT: become
unready at once, close the servers, finish the answers in flight, flush everything, write the clean-shutdown marker.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from service.build.ground import Host, Listening
from service.configs.listeners import host_and_port
from service.directory.beginning import StoppedBeforeStart
from service.lifecycle.ending import Ending
from service.lifecycle.readiness import Readiness
from service.lifecycle.supervisor import supervised
from service.node import Node
from service.observability.scrape import Scraper
from service.observability.stats import node_stats
from service.process.collecting import collect_a_few_at_a_time, exempt_existing
from service.process.descriptors import RESERVED, Descriptors, raise_limit, shares
from service.process.memory import keep_freed_blocks
from service.process.scheduling import shorten_slice
from service.serve.announcing import BROKER_ENDPOINTS, ENDPOINTS, announce, invite
from service.serve.http import serve_http
from service.serve.rounds import rounds
from service.serve.servers import serve_brokers, start_servers, taken_sockets
from service.settings.derived import check
from service.settings.node_settings import NodeSettings
from storage_tiers import events
from storage_tiers.clock import SystemClock, SystemRng
from storage_tiers.cold.process.launcher import ExecLauncher, TierLauncher
from storage_tiers.cold.process.shared_launcher import SharedLauncher
from storage_tiers.errors import Advice, LogError
from storage_tiers.files import DescriptorReserve, Files, OsFiles, replace_file
from storage_tiers.parent import end_with

log = logging.getLogger("tidelog")

#: The exit code of a supervised broker if a restart would fail in the same way (sysexits.h: EX_CONFIG).
NOT_AGAIN = 78
#: Most seconds to wait for the store's answer before printing the commands to try.
FIRST_LOOK_S = 10.0


def run(settings: NodeSettings) -> int:
    """Runs a node until it is stopped and returns the exit code. Raises LogError if it cannot start."""
    import uvloop

    own = None
    if settings.supervised is not None:
        end_with(settings.supervised.pid)
        own = {"node": settings.node_id}
    events.set_up(settings.log_level, settings.log_format, own=own)
    shorten_slice()
    keep_freed_blocks()
    exempt_existing()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(settings))
    except LogError as error:
        if settings.supervised is not None:
            events.error(log, "node.not_started", error=error)
            return 1 if error.advice is Advice.RETRY else NOT_AGAIN
        if settings.log_format == "text":
            raise
        events.error(log, "node.not_started", error=error)
        return 1


@dataclass(slots=True)
class _Telemetry:
    """The sources of `/stats` and `/metrics`, which are empty until the node serves."""

    scraper: Scraper | None = None

    async def stats(self) -> Mapping[str, object]:
        return {} if self.scraper is None else await node_stats(self.scraper.node)

    def scrape(self, open_metrics: bool) -> Awaitable[bytes] | None:
        return None if self.scraper is None else self.scraper.scrape(open_metrics=open_metrics)


async def _serve(settings: NodeSettings) -> int:
    readiness = Readiness()
    stop = _stop_on_signals(readiness)
    clock = SystemClock()
    began = clock.monotonic()
    _say_starting(settings)
    check(settings)
    descriptors, files = _files()
    shown = _Telemetry()
    async with AsyncExitStack() as stack:
        # The HTTP server starts first and stops last, so that it can report "not ready" during the start and the stop.
        http_host, http_port = host_and_port(settings.http_listener)
        most = shares(descriptors.limit, partitions=0, max_connections=0).http
        http = await serve_http(readiness, shown.stats, shown.scrape, http_host, http_port, connections=most)
        stack.push_async_callback(http.stop)
        sockets = await stack.enter_async_context(taken_sockets(settings))
        addresses = sockets.addresses((http_host, http.port))
        host = Host(files, clock, SystemRng(), _launcher(settings), descriptors)
        listening = Listening(sockets.listeners, addresses.grpc, addresses.http)
        try:
            node = await Node.open(settings, readiness, stop, host, listening)
        except StoppedBeforeStart:
            return _stopped(0, 0)
        stack.push_async_callback(node.close)
        # Commands of all brokers wait for the controller, and clients of this broker wait for this broker only.
        await stack.enter_async_context(serve_brokers(node))
        servers = await stack.enter_async_context(start_servers(node, sockets))
        shown.scraper = Scraper(node, servers.gateway)
        readiness.recovered = True
        name = ENDPOINTS if settings.supervised is None else BROKER_ENDPOINTS
        replace_file(OsFiles(), str(settings.data_dir / name), addresses.document(node.cluster_id))
        topics, took_ms = len(node.ground.metadata.image.topics), round((clock.monotonic() - began) * 1000)
        announce(addresses, node.cluster_id, topics, took_ms)
        collect_a_few_at_a_time()
        code = await _until_stopped(node, lambda trouble: invite(settings, addresses, node.cluster_id, trouble))
        readiness.stopping = True
        began = clock.monotonic()
        events.info(log, "node.stopping", connections=servers.gateway.connections)
    return _stopped(code, round((clock.monotonic() - began) * 1000))


def _launcher(settings: NodeSettings) -> TierLauncher:
    word = settings.supervised
    if word is None or word.tier_listener is None:
        return ExecLauncher(settings.log_format)
    return SharedLauncher(word.tier_listener)


def _files() -> tuple[Descriptors, Files]:
    """Raises the limit of open files, and reserves some descriptors for logs."""
    limit, reserve = raise_limit(), DescriptorReserve(RESERVED)
    reserve.fill()
    return Descriptors(limit, reserve), OsFiles(reserve)


def _stopped(code: int, took_ms: int) -> int:
    events.info(log, "node.stopped", code=code, ms=took_ms)
    return code


async def _until_stopped(node: Node, invited: Callable[[str | None], None]) -> int:
    ending = node.ground.ending
    try:
        async with supervised(rounds(node), node.ground.host.clock):
            access = asyncio.get_running_loop().create_task(node.run_store_access(), name="store access")
            access.add_done_callback(lambda task: _ended(ending, task, "claiming the store"))
            member = asyncio.get_running_loop().create_task(node.run_membership(), name="membership")
            member.add_done_callback(lambda task: _ended(ending, task, "following the controller"))
            inviting = asyncio.get_running_loop().create_task(_invite(node, access, invited), name="invitation")
            await ending.stop.wait()
            await node.leave()
            access.cancel()
            member.cancel()
            inviting.cancel()
    except* LogError as failures:
        first = failures.exceptions[0]
        ending.end(first if isinstance(first, LogError) else LogError(str(first)))
    if ending.fatal is not None:
        events.error(log, "node.must_stop", error=ending.fatal)
        return 1
    return 0


async def _invite(node: Node, access: asyncio.Task[None], invited: Callable[[str | None], None]) -> None:
    """Prints the addresses and commands when the store's state is known, or after FIRST_LOOK_S. Prints nothing if the node must
    stop because of the store."""
    if node.tier is None:
        invited(None)
        return
    tried = asyncio.ensure_future(node.tier.access.tried.wait())
    await asyncio.wait((tried, access), timeout=FIRST_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
    tried.cancel()
    if not node.ground.ending.stop.is_set():
        readiness = node.ground.readiness
        state = readiness.store if readiness.probed else f"it has not answered within {FIRST_LOOK_S:.0f} s"
        invited(None if state == "ok" else state)


def _ended(ending: Ending, task: asyncio.Task[None], work: str) -> None:
    """Ends the node if the task has failed."""
    failure = None if task.cancelled() else task.exception()
    if isinstance(failure, LogError):
        ending.end(failure)
    elif failure is not None:
        events.error(log, "node.defect", work=work, defect=failure)
        ending.end(LogError(f"{work} failed: {failure!r}"))


def _stop_on_signals(readiness: Readiness) -> asyncio.Event:
    stop = asyncio.Event()

    def on_signal(name: str) -> None:
        events.info(log, "node.signalled", signal=name)
        readiness.stopping = True
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number.name)
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
