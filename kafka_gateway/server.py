"""The shell around `connection.py`: sockets in, sockets out, on the event loop.

Client sockets sit in one epoll, which the event loop watches as a single file. One turn takes what is readable on all of
them, or as many as a slice of time allows, starts the requests, and then writes each connection's answers with one gathered
write (a write per answer would wake clients one by one and halve the rate with many connections). A few are watched by the
loop itself, which asks the kernel once less for each of their requests; there is nothing to gather where there are few.
Handlers that must wait give a future or a coroutine; nothing else gets a task.

Bounds: connections (`max.connections`; further ones wait in the kernel's queue), bytes of a request and of all requests
that are not whole yet, bytes not yet read by a client before its next request starts, bytes of files sent in a turn
(`sender.py`), idle time. Does not promise: TLS, other systems than Linux.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import select
import socket
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grpc_api.contract.node import NodeCore
from grpc_api.listening import listen
from kafka_gateway import server_events
from kafka_gateway.acceptor import Acceptor
from kafka_gateway.connection import (
    ALONE,
    FETCH,
    PRODUCE,
    Apis,
    Connection,
    InvalidFrame,
    PendingReply,
    Piece,
    RequestMetrics,
    release,
)
from kafka_gateway.fetch_sessions import FetchSessionCache
from kafka_gateway.handlers.api_versions import ApiVersionsHandler
from kafka_gateway.handlers.fetch import FetchHandler
from kafka_gateway.hot_parse import Malformed
from kafka_gateway.options import Options
from kafka_gateway.registry import APIS, Api, by_key
from kafka_gateway.reply import CloseConnection, DelayedReply, Handler, Reply
from kafka_gateway.request_memory_pool import RequestMemoryPool
from kafka_gateway.sender import Progress, Sender
from kafka_gateway.session import READ, GatewayCounters, GatewaySession
from kafka_gateway.settings import ConnectionLimits
from storage_tiers.errors import RequestTimedOut
from storage_tiers.turns import SLICE_S

#: Shared by all connections; one receive takes at most this much.
RECEIVE_BUFFER = 1 << 20
#: Sockets that the kernel names at once. A turn looks at as many of them as its slice has time for, one at least.
EVENTS_A_TURN = 4096
#: Requests of one connection started in one turn; a client may send thousands in one segment.
REQUESTS_A_TURN = 256
#: Seconds between looks at who is idle; an empty buffer is taken back after as long.
SWEEP_S = 10.0
#: What a Fetch that waits takes of memory, as a multiple of its request: 400 bytes for a partition, which takes 16 there.
WAITING_COPIES = 25
#: The requests of most consumers are smaller, and not counted.
UNCOUNTED_FETCH_BYTES = 1 << 10
#: The metrics' clock.
SECONDS = time.perf_counter  # noqa: TID251 - the shell
#: Connections that the loop watches itself.
WATCHED_BY_LOOP = 8

_IN, _OUT = int(select.EPOLLIN), int(select.EPOLLOUT)
_BROKEN = select.EPOLLHUP | select.EPOLLERR
_GONE = select.EPOLLRDHUP | _BROKEN


async def serve(core: NodeCore, options: Options, sockets: Mapping[str, socket.socket] | None = None) -> GatewayServer:
    """Serves until `stop` on `sockets`, by the names of their listeners, or else takes the addresses of the settings. Raises
    OSError where one cannot be had."""
    server = GatewayServer(core, options)
    server.start(sockets or {each.listener: listen(each.host, each.port) for each in options.settings.listeners})
    return server


class GatewayServer:
    """Made by `serve`. Must be used on one event loop only."""

    def __init__(self, core: NodeCore, options: Options, apis: tuple[Api, ...] = APIS) -> None:
        settings = self._settings = options.settings
        self._loop = asyncio.get_running_loop()
        self._handlers: dict[int, Handler] = {api.key: api.build(core, options) for api in by_key(apis).values()}
        #: By the API's name.
        self.metrics = {api.name: RequestMetrics() for api in by_key(apis).values()}
        self._apis: Apis = {
            api.key: (api.served_from, api.highest, self._handlers[api.key].handle, self.metrics[api.name])
            for api in by_key(apis).values()
        }
        self._request_context = options.request_context
        self._scratch = bytearray(RECEIVE_BUFFER)
        self._epoll = select.epoll()
        self._sessions: dict[int, GatewaySession] = {}
        self._acceptor = Acceptor(self._epoll, settings.connections, self._welcome)
        self._sender = Sender(self._loop)
        self._watched_by_loop = 0
        self._dirty: list[GatewaySession] = []
        #: What the kernel said of sockets that no turn had time for yet. None is somebody who wants to connect: to the
        #: listener of that file descriptor.
        self._ready: deque[tuple[GatewaySession | None, int]] = deque()
        self._leaving: deque[tuple[GatewaySession, int]] = deque()
        self._flush_scheduled = False
        self._memory = RequestMemoryPool(self._sessions, settings.request_memory_bytes)
        self._stopping = False
        self._sweeper: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._now = self._loop.time()
        #: The turn's begin, for which the loop's own clock is too coarse.
        self._began = SECONDS()
        self.counters = GatewayCounters()
        #: By listener, in the order of the settings.
        self.ports: Mapping[str, int] = {}

    # --- life ---------------------------------------------------------------------------------------------------------
    def start(self, listeners: Mapping[str, socket.socket]) -> None:
        self.ports = {name: listener.getsockname()[1] for name, listener in listeners.items()}
        self._acceptor.start(listeners)
        self._loop.add_reader(self._epoll.fileno(), self._turn)
        self._schedule_sweep()

    async def stop(self) -> None:
        """Stops accepting and reading, lets answers be finished and sent within `stop_timeout_ms`, then closes. Once."""
        if self._stopping:
            return
        self._stopping = True
        self._acceptor.stop()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for session in list(self._sessions.values()):
            self._watch(session, session.events & ~select.EPOLLIN)
            for api_key, future in list(session.futures.values()):
                # What waits for new records would wait for nothing; what waits to be durable is worth an answer.
                if api_key != PRODUCE:
                    future.cancel()
        deadline = self._loop.time() + self._settings.stop_timeout_ms / 1000
        while any(session.is_busy for session in self._sessions.values()) and self._loop.time() < deadline:
            await asyncio.sleep(0.005)
        for session in list(self._sessions.values()):
            self._close(session, "the node stops")
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
        self._sender.close()

    def limit_connections(self, limits: ConnectionLimits) -> None:
        """Binds whoever connects from now on."""
        self._acceptor.limit(limits)

    @property
    def port(self) -> int:
        """The first listener's."""
        return next(iter(self.ports.values()))

    @property
    def connections(self) -> int:
        return len(self._sessions)

    @property
    def held_bytes(self) -> int:
        return self._memory.held_bytes

    def pending_replies(self, api_key: int) -> int:
        """Requests of that API whose handlers have returned and whose answers are not made yet."""
        return sum(key == api_key for session in self._sessions.values() for key, _ in session.futures.values())

    @property
    def sent_bytes(self) -> int:
        return self._sender.sent_bytes

    @property
    def errors(self) -> Iterator[tuple[str, Mapping[int, int]]]:
        """By API: how often each error code was answered."""
        for name, handler in zip(self.metrics, self._handlers.values(), strict=True):
            yield name, handler.errors

    @property
    def fetch_sessions(self) -> FetchSessionCache | None:
        return next((each.sessions for each in self._handlers.values() if isinstance(each, FetchHandler)), None)

    # --- one turn -----------------------------------------------------------------------------------------------------
    def _turn(self) -> None:
        self._now = self._loop.time()
        began = self._began = SECONDS()
        ready, leaving = self._ready, self._leaving
        if not ready:
            # Whoever is left of the last turn comes first: the kernel would name the same ones first again.
            self._sort_out(self._epoll.poll(0, EVENTS_A_TURN))
        until = began + SLICE_S
        while ready:
            session, events = ready.popleft()
            if session is None:
                self._acceptor.accept(events, self._now)
            elif not session.closed:
                if events & _OUT:
                    self._watch(session, session.events & ~_OUT)
                    self._dirty.append(session)
                if events & ~_OUT:
                    self._readable(session, events)
            if SECONDS() >= until:
                break
        while leaving:
            session, events = leaving.popleft()
            session.leaving = False
            if not session.closed:
                self._readable(session, events)
            if SECONDS() >= until:
                break
        self._flush_and_count(began)

    def _sort_out(self, named: Sequence[tuple[int, int]]) -> None:
        """What the kernel says of sockets. Those whose client has gone come behind all others: they may be thousands at once,
        and each takes a while to close."""
        for fd, events in named:
            session = self._sessions.get(fd)
            if session is None:
                self._ready.append((None, fd))
            elif not events & _GONE:
                self._ready.append((session, events))
            elif not session.leaving:
                session.leaving = True
                self._leaving.append((session, events))

    def _turn_of(self, session: GatewaySession) -> None:
        """A turn of a connection that the loop watches itself."""
        self._now = self._loop.time()
        began = self._began = SECONDS()
        self._readable(session, _IN)
        # One look at the clock less: its answers are written as soon as they are made.
        self.counters.busy_s += self._flush(began) - began

    def _welcome(self, sock: socket.socket, address: tuple[str, int], listener: str) -> None:
        session = GatewaySession(sock, address, listener, Connection(self._settings.limits, self._scratch), self._now)
        self._sessions[session.fd] = session
        if self._watched_by_loop < WATCHED_BY_LOOP:
            self._watched_by_loop += 1
            session.by_loop = True
            self._loop.add_reader(session.fd, self._turn_of, session)
        else:
            self._epoll.register(session.fd, session.events)
        self.counters.connections_accepted += 1

    def _readable(self, session: GatewaySession, events: int) -> None:
        connection = session.connection
        if self._stopping or session.ending is not None or connection.stalled:
            if events & _GONE:
                self._gone(session, events)
            else:
                self._watch(session, session.events & ~select.EPOLLIN)
            return
        try:
            count = session.socket.recv_into(connection.target())
        except BlockingIOError:
            return
        except OSError as error:
            self._close(session, str(error))
            return
        if count == 0:
            self._close(session, "")
            return
        session.last_active = self._now
        self.counters.received_bytes += count
        connection.received(count)
        self._take_requests(session)

    def _gone(self, session: GatewaySession, events: int) -> None:
        """The client has gone while it was owed answers: its waits end; what it sent before is still taken."""
        if not session.connection.waiting or events & _BROKEN:
            self._close(session, "")
            return
        self._watch(session, session.events & ~READ)
        session.client.has_left = True
        for _, future in list(session.futures.values()):
            future.cancel()

    def _take_requests(self, session: GatewaySession) -> None:
        connection = session.connection
        self._request_context.client = session.client
        try:
            until = self._began + SLICE_S
            started = connection.take(
                self._apis, REQUESTS_A_TURN, self._otherwise, session, SECONDS, self._began, until
            )
            if started == REQUESTS_A_TURN or connection.paused:
                self._loop.call_soon(self._go_on, session)
            elif connection.start != connection.end:
                self._refuse_early(connection)
        except (InvalidFrame, Malformed, CloseConnection) as error:
            server_events.refused(session, error)
            self._end(session, str(error))
            return
        except Exception as error:  # noqa: BLE001 - one connection ends, the others go on
            self.counters.failures += 1
            server_events.defect(session, error)
            self._end(session, "failure")
            return
        finally:
            self.counters.requests += connection.taken
            connection.taken = 0
        if connection.owns_buffer or connection.start != connection.end:
            connection.settle()
            self._hold(session)
        elif session.working_bytes:
            self._hold(session)
        if connection.out:
            self._dirty.append(session)

    def _refuse_early(self, connection: Connection) -> None:
        """A frame that is cut off and not served is not waited for. Raises CloseConnection."""
        begun = connection.begun()
        if begun is None:
            return
        api = self._apis.get(begun[0])
        if api is None or not api[0] <= begun[1] <= api[1]:
            self._unserved(begun[0], begun[1], 0)

    def _otherwise(
        self, session: GatewaySession, api_key: int, version: int, correlation: int, reply: Reply | None
    ) -> None:
        """What `Connection.take` cannot answer by itself. Raises CloseConnection."""
        if reply is None:
            session.connection.answer(self._unserved(api_key, version, correlation))
        else:
            self._take_reply(session, api_key, reply)

    def _unserved(self, api_key: int, version: int, correlation: int) -> Sequence[Piece]:
        """Only ApiVersions has an answer to a version that does not exist (KIP-511)."""
        handler = self._handlers.get(api_key)
        if isinstance(handler, ApiVersionsHandler):
            return handler.unsupported(correlation)
        raise CloseConnection(f"api key {api_key} version {version} is not served")

    def _hold(self, session: GatewaySession) -> None:
        if session.connection.held_bytes + session.working_bytes == session.held_bytes or session.closed:
            return
        self._memory.count(session)
        while (largest := self._memory.connection_to_close(session, self._now)) is not None:
            server_events.pool_is_full(largest, self._memory.held_bytes, self._memory.limit_bytes)
            if largest.connection.unread_bytes or largest.working_bytes:
                self._close(
                    largest,
                    "the request memory pool is full; answers in memory or requests in progress hold most of it",
                )
            else:
                self._end(largest, "the request memory pool is full of incomplete requests")
            if not largest.closed:
                self._memory.count(largest)

    def _take_reply(self, session: GatewaySession, api_key: int, reply: Reply) -> None:
        connection = session.connection
        if isinstance(reply, DelayedReply):
            pending = connection.delay(api_key)
            session.futures[pending] = (api_key, reply.future)
            if api_key == FETCH and connection.request_size > UNCOUNTED_FETCH_BYTES:
                session.working_bytes = WAITING_COPIES * connection.request_size
            since = self._began, SECONDS()
            reply.future.add_done_callback(functools.partial(self._answered, session, pending, reply, api_key, since))
        elif asyncio.iscoroutine(reply):
            pending = connection.delay(ALONE)
            session.working_bytes = connection.request_size * (WAITING_COPIES if api_key == FETCH else 1)
            task: asyncio.Task[Sequence[Piece]] = self._loop.create_task(reply)
            if api_key == FETCH:
                session.futures[pending] = (api_key, task)
            self._tasks.add(task)
            since = self._began, SECONDS()
            task.add_done_callback(functools.partial(self._worked, session, pending, api_key, since))
        else:
            connection.answered(self._apis[api_key][3], SECONDS() - self._began, SECONDS())
            connection.answer(reply)

    # --- delayed answers --------------------------------------------------------------------------------------------
    def _answered(
        self,
        session: GatewaySession,
        pending: PendingReply,
        delayed: DelayedReply,
        api_key: int,
        since: tuple[float, float],
        future: asyncio.Future[Any],
    ) -> None:
        session.futures.pop(pending, None)
        if api_key == FETCH:
            session.working_bytes = 0
        self._waited(session, api_key, since)
        pieces: Sequence[Piece] = ()
        try:
            if not future.cancelled():
                failure = future.exception()
                pieces = delayed.finish(future.result()) if failure is None else delayed.refuse(failure)
            elif not self._stopping and not session.closed:
                pieces = delayed.refuse(RequestTimedOut("the broker gave this request up; ask again"))
        except CloseConnection as error:
            self._close(session, str(error))
            return
        except Exception as error:  # noqa: BLE001 - one connection ends, the others go on
            self.counters.failures += 1
            server_events.defect(session, error)
            self._close(session, "failure")
            return
        self._complete(session, pending, pieces)

    def _waited(self, session: GatewaySession, api_key: int, since: tuple[float, float]) -> None:
        """An answer that was not there at once is there, or was given up. `since` is when its request could start, and when
        its handler was done with it."""
        metrics = self._apis[api_key][3]
        self._began = now = SECONDS()
        metrics.waits += 1
        metrics.remote_s += now - since[1]
        session.connection.answered(metrics, now - since[0], now)

    def _worked(
        self,
        session: GatewaySession,
        pending: PendingReply,
        api_key: int,
        since: tuple[float, float],
        task: asyncio.Task[Sequence[Piece]],
    ) -> None:
        self._tasks.discard(task)
        session.futures.pop(pending, None)
        session.working_bytes = 0
        self._waited(session, api_key, since)
        if task.cancelled():
            self._close(session, "" if session.client.has_left else "its request was given up")
        elif isinstance(failure := task.exception(), InvalidFrame | Malformed | CloseConnection):
            server_events.refused(session, failure)
            self._close(session, str(failure))
        elif failure is not None:
            self.counters.failures += 1
            server_events.defect(session, failure)
            self._close(session, "failure")
        else:
            self._complete(session, pending, task.result())

    def _complete(self, session: GatewaySession, pending: PendingReply, pieces: Sequence[Piece]) -> None:
        if session.closed:
            release(pieces)
            return
        session.last_active = self._loop.time()
        session.connection.complete(pending, pieces)
        self._hold(session)
        self._resume(session)
        self._dirty.append(session)
        self._flush_soon()

    def _go_on(self, session: GatewaySession) -> None:
        """Takes what was left when the turn's share of requests was used up."""
        if not session.closed:
            began = self._began = SECONDS()
            self._resume(session)
            self._flush_and_count(began)

    def _resume(self, session: GatewaySession) -> None:
        """Takes up what arrived while no request could start."""
        connection = session.connection
        if self._stopping or session.ending is not None:
            return
        # Also when a whole frame fills the connection's own buffer, where nothing more could be received.
        if connection.end > connection.start:
            self._take_requests(session)
        if not connection.stalled and session.ending is None:
            self._watch(session, session.events | select.EPOLLIN)

    # --- sending ------------------------------------------------------------------------------------------------------
    def _flush_soon(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_later)

    def _flush_later(self) -> None:
        self._flush_scheduled = False
        self._flush_and_count(SECONDS())

    def _flush_and_count(self, began: float) -> None:
        """The end of a turn that began then."""
        self.counters.busy_s += self._flush(SECONDS()) - began

    def _flush(self, now: float) -> float:
        """Writes what the turn produced, each connection once; what the time is then."""
        if not self._dirty:
            return SECONDS()
        dirty, self._dirty = self._dirty, []
        sender = self._sender
        sender.new_turn(len(dirty))
        for session in dirty:
            if not session.closed and not session.in_thread and not session.events & _OUT:
                try:
                    if session.ending is not None or not sender.send_small(session.socket, session.connection):
                        self._send(session)
                    else:
                        sender.small_at = self._now
                except OSError as error:
                    self._close(session, str(error))
                now = session.connection.wrote(now, SECONDS())
        if self._dirty:
            self._flush_soon()
        return now

    def _send(self, session: GatewaySession) -> None:
        connection = session.connection
        congested = connection.congested
        progress = self._sender.send(session.socket, connection, session, self._thread_done)
        session.last_active = self._now
        if progress is Progress.BLOCKED:
            self._watch(session, session.events | select.EPOLLOUT)
        elif progress is Progress.SHARED:
            self._dirty.append(session)
        elif progress is Progress.THREAD:
            session.in_thread = True
        elif session.ending is not None and not session.is_busy:
            self._close(session, session.ending)
            return
        self._hold(session)
        if congested and not connection.congested:
            self._resume(session)

    def _thread_done(self, session: GatewaySession, failure: OSError | None, is_full: bool) -> None:
        """A thread has read what `session` sends next, or has sent of it what the socket took."""
        session.in_thread = False
        if failure is not None:
            self._close(session, str(failure))
        if session.closed:
            return
        if not session.connection.congested:
            self._began = SECONDS()
            self._resume(session)
        if is_full:
            self._watch(session, session.events | select.EPOLLOUT)
        else:
            self._dirty.append(session)
            self._flush_soon()

    # --- closing ------------------------------------------------------------------------------------------------------
    def _watch(self, session: GatewaySession, events: int) -> None:
        if events == session.events or session.closed:
            return
        session.events = events
        if session.by_loop:
            # For good: who is waited for once will be again, and each change costs two calls of the kernel.
            self._leave_loop(session)
            self._epoll.register(session.fd, events)
        else:
            self._epoll.modify(session.fd, events)

    def _leave_loop(self, session: GatewaySession) -> None:
        session.by_loop = False
        self._watched_by_loop -= 1
        self._loop.remove_reader(session.fd)

    def _end(self, session: GatewaySession, reason: str) -> None:
        """Takes no more requests; closes once those before are answered and sent, as Kafka does."""
        if not session.is_busy:
            self._close(session, reason)
            return
        session.ending = reason
        session.connection.discard()
        self._watch(session, session.events & ~select.EPOLLIN)
        self._dirty.append(session)
        self._flush_soon()

    def _close(self, session: GatewaySession, reason: str) -> None:
        if session.closed:
            return
        if reason:
            server_events.closed(session, reason)
        session.closed = session.client.has_left = True
        del self._sessions[session.fd]
        if session.by_loop:
            self._leave_loop(session)
        else:
            with contextlib.suppress(OSError):
                self._epoll.unregister(session.fd)
        for _, future in list(session.futures.values()):
            future.cancel()
        session.futures.clear()
        session.connection.abandon()
        if session.client.left is not None:
            session.client.left()
        self._memory.forget(session)
        session.socket.close()
        self.counters.connections_closed += 1
        self._acceptor.leave(session.address[0])

    def _schedule_sweep(self) -> None:
        period = min(SWEEP_S, self._settings.connections_max_idle_ms / 4000)
        self._sweeper = self._loop.call_later(max(period, 0.01), self._sweep)

    def _sweep(self) -> None:
        """Closes connections that neither sent nor were sent anything for too long. Those owed an answer are not idle."""
        now = self._loop.time()
        oldest = now - self._settings.connections_max_idle_ms / 1000
        for session in list(self._sessions.values()):
            if session.last_active < oldest and not session.connection.waiting:
                self._close(session, "idle")
        self._memory.reclaim(now - SWEEP_S)
        self._acceptor.resume()
        self._schedule_sweep()
