"""The supervisor's process: starts a process for each broker, reaps all that end, and carries out the steps of `decisions.py`.
With a store it also has the tier process that all brokers share (`shared_tier.py`).

A started process is a fresh interpreter (posix_spawn) in a process group of its own. So Ctrl-C reaches only the supervisor,
which stops its brokers in order. A broker ends with the supervisor (`storage_tiers.parent`). As PID 1 of a container the
supervisor also reaps orphaned processes. No library in this process may wait for its own child processes.

Every broker accepts connections from the bootstrap sockets in addition to its own sockets. Waiting connections go to running
brokers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpc_api.contract.topics import text_of
from grpc_api.listening import listen
from service.configs.listeners import host_and_port, parse_listeners
from service.process.descriptors import raise_limit
from service.process.own_command import own_command
from service.serve.announcing import BROKER_ENDPOINTS, ENDPOINTS, Addresses, invite
from service.settings.node_settings import NO_STORE, NodeSettings, Supervision, environment_of_children
from service.supervisor.addresses import bootstrap_sockets, check_free, held_address
from service.supervisor.decisions import BrokerState, Decision, Step, Verb, cannot_go_on, decide
from service.supervisor.held import check_none_left_out
from service.supervisor.pages import MOST_BYTES, Pages, Watched
from service.supervisor.plan import BrokerPlan, Machine, plan
from service.supervisor.shared_tier import SharedTier
from service.supervisor.words import words_of
from storage_tiers import events
from storage_tiers.errors import InvalidConfig
from storage_tiers.files import OsFiles, replace_file

log = logging.getLogger(__name__)

#: The exit code of a broker if a restart would fail in the same way (`service.serve.app`).
CANNOT_RUN = 78
#: Seconds between two checks for the addresses of a starting broker.
LOOK_S = 0.05


def supervise(settings: NodeSettings, brokers: int) -> int:
    """Runs that many brokers until SIGTERM or SIGINT, and returns the exit code. Raises InvalidConfig if the brokers cannot
    start."""
    events.set_up(settings.log_level, settings.log_format)
    check_none_left_out(settings, brokers)
    raise_limit()
    with bootstrap_sockets(settings) as sockets, held_address(settings) as controller:
        ports = {name: each.getsockname()[1] for name, each in sockets.items()}
        plans = plan(settings, brokers, Machine(socket.gethostname(), controller, ports))
        check_free(plans)
        return asyncio.run(Supervisor(settings, plans, sockets).run())


class Supervisor:
    """The brokers of `plans`, which accept from `sockets`."""

    def __init__(self, settings: NodeSettings, plans: list[BrokerPlan], sockets: Mapping[str, socket.socket]) -> None:
        self._settings = settings
        self._plans = {each.broker_id: each for each in plans}
        self._sockets = sockets
        self._states = {each.broker_id: BrokerState(each.broker_id, each.goes_first) for each in plans}
        inherited = [each.fileno() for each in sockets.values()]
        self._tier = None if settings.store == NO_STORE else SharedTier(settings.log_format, keep_out=inherited)
        #: The addresses that each serving broker has announced.
        self._announced: dict[int, Mapping[str, Any]] = {}
        self._changed = asyncio.Event()
        self._stopping = self._is_invited = False
        self._code = 0
        self._http = ""

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop_by, number.name)
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        events.info(log, "supervisor.starting", pid=os.getpid(), brokers=len(self._plans))
        async with contextlib.AsyncExitStack() as stack:
            if self._tier is not None:
                self._tier.watch()
                stack.push_async_callback(self._tier.close)
            await stack.enter_async_context(await self._serve_pages())
            looking = loop.create_task(self._look_for_addresses())
            stack.callback(looking.cancel)
            while not (decision := decide(list(self._states.values()), self._now(), stopping=self._stopping)).over:
                await self._do(decision)
        events.info(log, "supervisor.stopped", code=self._code)
        return self._code

    async def _do(self, decision: Decision) -> None:
        for step in decision.steps:
            self._take(step)
        if decision.steps:
            return
        wait_s = None if decision.again_s is None else max(0.0, decision.again_s - self._now())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._changed.wait()
        self._changed.clear()

    @staticmethod
    def _now() -> float:
        return time.monotonic()  # noqa: TID251 - the shell

    # --- processes ----------------------------------------------------------------------------------------------------
    def _take(self, step: Step) -> None:
        state, now = self._states[step.broker_id], self._now()
        match step.verb:
            case Verb.START:
                self._states[step.broker_id] = self._start(state)
            case Verb.ASK:
                self._signal(state, signal.SIGTERM)
                self._states[step.broker_id] = state.asked(now)
            case Verb.KILL:
                events.warning(log, "supervisor.broker_killed", broker=state.broker_id, pid=state.pid)
                self._signal(state, signal.SIGKILL)
                self._states[step.broker_id] = state.killed_now()

    def _start(self, state: BrokerState) -> BrokerState:
        settings = self._plans[state.broker_id].settings
        descriptors = {name: each.fileno() for name, each in self._sockets.items()}
        listener = None if self._tier is None else self._tier.listener
        word = Supervision(pid=os.getpid(), brokers=len(self._plans), sockets=descriptors, tier_listener=listener)
        words = own_command(["serve", *words_of(settings.model_copy(update={"supervised": word}))])
        try:
            pid = os.posix_spawn(
                words[0], words, environment_of_children(), setpgroup=0, setsigmask=(), file_actions=_NO_INPUT
            )
        except OSError as error:
            events.error(log, "supervisor.broker_not_started", broker=state.broker_id, error=error)
            return state.not_started(self._now())
        events.info(log, "supervisor.broker_started", broker=state.broker_id, pid=pid)
        return state.started(pid, self._now())

    def _signal(self, state: BrokerState, number: signal.Signals) -> None:
        """Signals the process. Its pid stays valid until this loop reaps it."""
        assert state.pid is not None
        os.kill(state.pid, number)

    def _reap(self) -> None:
        """Reaps ended brokers, and orphans if this process is PID 1."""
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                pid, code = found[0], os.waitstatus_to_exitcode(found[1])
                if self._tier is not None:
                    self._tier.ended(pid, code)
                for broker_id, state in self._states.items():
                    if state.pid == pid:
                        self._ended(broker_id, code)
        self._changed.set()

    def _ended(self, broker_id: int, code: int) -> None:
        state = self._states[broker_id].ended(self._now(), cannot_run=code == CANNOT_RUN)
        self._states[broker_id] = state
        self._announced.pop(broker_id, None)
        if self._stopping:
            return
        if cannot_go_on([state]):
            events.error(log, "supervisor.broker_cannot_run", broker=broker_id)
            self._stopping, self._code = True, 1
        else:
            after_ms = round((state.due_s - self._now()) * 1000)
            events.error(log, "supervisor.broker_ended", broker=broker_id, code=code, again_in_ms=after_ms)

    def _stop_by(self, name: str) -> None:
        events.info(log, "supervisor.signalled", signal=name)
        self._stopping = True
        self._changed.set()

    # --- addresses ----------------------------------------------------------------------------------------------------
    async def _look_for_addresses(self) -> None:
        while True:
            for broker_id, state in self._states.items():
                if state.pid is not None and not state.serves:
                    self._look(broker_id, state)
            await asyncio.sleep(LOOK_S)

    def _look(self, broker_id: int, state: BrokerState) -> None:
        path = Path(self._plans[broker_id].settings.data_dir) / BROKER_ENDPOINTS
        try:
            found = json.loads(path.read_bytes())
        except (OSError, ValueError):
            return
        if found["pid"] != state.pid:  # written by an earlier process
            return
        self._announced[broker_id] = found
        self._states[broker_id] = state.announced()
        self._changed.set()
        if len(self._announced) == len(self._plans):
            self._announce()

    def _announce(self) -> None:
        """Writes the node's addresses, and prints them the first time."""
        first = self._announced[min(self._announced)]
        settings = self._settings
        asked = parse_listeners(
            settings.listeners, settings.advertised_listeners, settings.listener_security_protocol_map
        )
        ports = {name: each.getsockname()[1] for name, each in self._sockets.items()}
        host, port = host_and_port(self._http)
        grpc = host_and_port(first["grpc"])
        addresses = Addresses.of(asked.resolved(ports, socket.gethostname()), grpc=grpc, http=(host, port))
        document = addresses.document(first["cluster_id"])
        replace_file(OsFiles(), str(Path(settings.data_dir) / ENDPOINTS), document)
        if not self._is_invited:
            self._is_invited = True
            events.info(log, "supervisor.listening", kafka=addresses.bootstrap, http=addresses.http)
            invite(settings, addresses, first["cluster_id"], None)

    # --- pages --------------------------------------------------------------------------------------------------------
    async def _serve_pages(self) -> asyncio.Server:
        host, port = host_and_port(self._settings.http_listener)
        tier = self._tier
        pages = Pages(
            self._watched, lambda: self._stopping, lambda into: None if tier is None else tier.put_metrics(into)
        )
        try:
            held = listen(host, port)
        except OSError as error:
            raise InvalidConfig(
                f"cannot listen on {self._settings.http_listener} for HTTP: {error.strerror}; stop the process using it, or "
                "choose another --http-listener"
            ) from None
        self._http = text_of(host, held.getsockname()[1])
        return await asyncio.start_server(pages.serve, sock=held, limit=MOST_BYTES)

    def _watched(self) -> dict[int, Watched]:
        return {
            broker: Watched(self._announced.get(broker, {}).get("http"), state.restarts)
            for broker, state in self._states.items()
        }


_NO_INPUT = ((os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),)
