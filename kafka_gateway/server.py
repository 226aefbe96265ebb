"""Serves clients of Kafka's protocol on the event loop: owns the sockets of the connections in `connection.py`.

Client sockets share two epolls (`ready_sockets.py`); the event loop watches each as a single file. One turn receives from the
readable sockets of an epoll that fit into a slice of time, starts their requests (`dispatcher.py`), and writes each
connection's answers with one gathered write: a write per answer would wake clients one by one and halve the rate with many
connections. A few connections gain nothing from gathering; then the event loop watches their sockets itself, which saves a
system call per request. Connections whose last request was a group member's have the second epoll. They come last.

Bounds: connections (`connection_quotas.py`), the size of a request, the memory of all requests and unread answers
(`request_memory_pool.py`), unread bytes of a client before its next request starts, bytes of files sent in a turn
(`sender.py`), idle time. TLS and systems other than Linux are not supported.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from grpc_api.contract.node import NodeCore
from grpc_api.listening import listen
from kafka_gateway import server_events
from kafka_gateway.acceptor import Acceptor, NamedSockets
from kafka_gateway.connection import Connection, InvalidFrame, PendingReply, Piece, RequestMetrics, release
from kafka_gateway.dispatcher import SECONDS, Dispatcher
from kafka_gateway.fetch_sessions import FetchSessionCache
from kafka_gateway.hot_parse import Malformed
from kafka_gateway.options import Options
from kafka_gateway.ready_sockets import (
    BROKEN,
    GONE,
    MEMBER_APIS,
    RECORD_APIS,
    LoopSockets,
    ReadySockets,
    share_of_slice,
)
from kafka_gateway.registry import APIS, Api
from kafka_gateway.reply import CloseConnection
from kafka_gateway.request_memory_pool import RequestMemoryPool
from kafka_gateway.sender import Progress, Sender
from kafka_gateway.session import READ, GatewayCounters, GatewaySession
from kafka_gateway.settings import ConnectionLimits
from storage_tiers.turns import SLICE_S

#: Bytes of the receive buffer that all connections share; one receive takes at most this much.
RECEIVE_BUFFER = 1 << 20
#: Seconds between checks for idle connections, and until an empty buffer is reclaimed.
SWEEP_S = 10.0
#: Up to this many connections, the event loop watches their sockets itself (`LoopSockets`).
WATCHED_BY_LOOP = 8

_IN, _OUT = int(select.EPOLLIN), int(select.EPOLLOUT)


async def serve(
    core: NodeCore, options: Options, own: Mapping[str, socket.socket] | None = None, shared: NamedSockets = ()
) -> GatewayServer:
    """Serves until `stop`. `own` are listening sockets by listener name; without them it binds the settings' addresses.
    `shared` are sockets from which other processes accept too. Raises OSError if an address cannot be bound."""
    server = GatewayServer(core, options)
    server.start(own or {each.listener: listen(each.host, each.port) for each in options.settings.listeners}, shared)
    return server


class GatewayServer:
    """Made by `serve`. Must be used on one event loop only."""

    def __init__(self, core: NodeCore, options: Options, apis: tuple[Api, ...] = APIS) -> None:
        settings = self._settings = options.settings
        self._loop = asyncio.get_running_loop()
        self._scratch = bytearray(RECEIVE_BUFFER)
        self._clients = ReadySockets()
        self._members = ReadySockets(self._clients)
        self._sessions: dict[int, GatewaySession] = {}
        self._acceptor = Acceptor(self._clients.epoll, settings.connections, self._welcome)
        self._sender = Sender(self._loop)
        self._by_loop = LoopSockets(self._loop, self._turn_of)
        self._dirty: list[GatewaySession] = []
        #: Connections with received requests that could not start yet. All share one slice of a turn.
        self._resuming: deque[GatewaySession] = deque()
        self._flush_scheduled = self._resume_scheduled = self._stopping = False
        self._memory = RequestMemoryPool(self._sessions, settings.request_memory_bytes)
        self._sweeper: asyncio.TimerHandle | None = None
        self._now = self._loop.time()
        self.counters = GatewayCounters()
        self._dispatcher = Dispatcher(core, options, apis, self, self.counters)
        #: Ports by listener, in the order of the settings.
        self.ports: Mapping[str, int] = {}

    # --- life ---------------------------------------------------------------------------------------------------------
    def start(self, listeners: Mapping[str, socket.socket], shared: NamedSockets = ()) -> None:
        self.ports = {name: listener.getsockname()[1] for name, listener in listeners.items()}
        self._acceptor.start((*listeners.items(), *shared))
        for sockets in (self._clients, self._members):
            self._loop.add_reader(sockets.epoll.fileno(), self._turn, sockets)
        self._schedule_sweep()

    async def stop(self) -> None:
        """Stops accepting and reading, sends pending answers for up to `stop_timeout_ms`, then closes sockets. Idempotent."""
        if self._stopping:
            return
        self._stopping = True
        self._acceptor.stop()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for session in list(self._sessions.values()):
            self._watch(session, session.events & ~select.EPOLLIN)
        self._dispatcher.stop(self._sessions)
        deadline = self._loop.time() + self._settings.stop_timeout_ms / 1000
        while any(session.is_busy for session in self._sessions.values()) and self._loop.time() < deadline:
            await asyncio.sleep(0.005)
        for session in list(self._sessions.values()):
            self.close(session, "the node stops")
        for sockets in (self._clients, self._members):
            self._loop.remove_reader(sockets.epoll.fileno())
            sockets.epoll.close()
        self._sender.close()

    def limit_connections(self, limits: ConnectionLimits) -> None:
        """Replaces the limits. They apply to new connections only."""
        self._acceptor.limit(limits)

    @property
    def port(self) -> int:
        """The port of the first listener."""
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
    def metrics(self) -> Mapping[str, RequestMetrics]:
        """The metrics of each API, by its name."""
        return self._dispatcher.metrics

    @property
    def errors(self) -> Iterator[tuple[str, Mapping[int, int]]]:
        """Yields each API's name, and how often each error code was answered."""
        return self._dispatcher.errors

    @property
    def fetch_sessions(self) -> FetchSessionCache | None:
        return self._dispatcher.fetch_sessions

    # --- one turn -----------------------------------------------------------------------------------------------------
    def _turn(self, sockets: ReadySockets) -> None:
        others = sockets.poll_others(self._sessions)
        if others is not None:
            self._turn(others)
        self._now, began = self._loop.time(), self._dispatcher.begin_turn()
        try:
            self._serve_ready(sockets, began)
        finally:  # without the end of the turn, the coordinators' records would not reach the log
            self._flush_and_count(began)

    def _serve_ready(self, sockets: ReadySockets, began: float) -> None:
        sockets.poll(self._sessions)
        ready, leaving = sockets.ready, sockets.leaving
        now, until = began, began + SLICE_S * sockets.share(self._now)
        share = share_of_slice(len(ready))
        while ready:
            session, events = ready.popleft()
            if session is None:
                self._acceptor.accept(events, self._now)
            elif not session.closed:
                if events & _OUT:
                    self._watch(session, session.events & ~_OUT)
                    self._dirty.append(session)
                if events & ~_OUT:
                    self._readable(session, events, now + share)
            if (now := SECONDS()) >= until:
                break
        while leaving:
            session, events = leaving.popleft()
            session.leaving = False
            if not session.closed:
                self._readable(session, events, now + share)
            if (now := SECONDS()) >= until:
                break

    def _turn_of(self, session: GatewaySession) -> None:
        """A turn of one connection that the event loop watches itself."""
        self._now, began = self._loop.time(), self._dispatcher.begin_turn()
        try:
            self._readable(session, _IN, began + SLICE_S / WATCHED_BY_LOOP)
        finally:
            # `began` is also the time of the flush, which saves a reading of the clock: answers are written when made.
            self.counters.busy_s += self._flush(began) - began

    def _welcome(self, sock: socket.socket, address: tuple[str, int], listener: str) -> None:
        connection = Connection(self._settings.limits, self._scratch)
        session = GatewaySession(sock, address, listener, connection, self._clients.epoll, self._now)
        self._sessions[session.fd] = session
        self._by_loop.welcome(session, are_few=len(self._sessions) <= WATCHED_BY_LOOP)
        self.counters.connections_accepted += 1

    def _readable(self, session: GatewaySession, events: int, until: float) -> None:
        connection = session.connection
        if session.resuming and not events & BROKEN:
            return  # earlier requests come first, even if the client has closed its side
        if self._stopping or session.ending is not None or connection.stalled:
            if events & GONE:
                self._gone(session, events)
            else:
                self._watch(session, session.events & ~select.EPOLLIN)
            return
        try:
            count = session.socket.recv_into(connection.target())
        except BlockingIOError:
            return
        except OSError as error:
            self.close(session, str(error))
            return
        if count == 0:
            self.close(session, "")
            return
        session.last_active = self._now
        self.counters.received_bytes += count
        connection.received(count)
        self._take_requests(session, until)

    def _gone(self, session: GatewaySession, events: int) -> None:
        """Called when the client has disconnected. Cancels delayed requests; received requests are still taken."""
        if not session.connection.waiting or events & BROKEN:
            self.close(session, "")
            return
        self._watch(session, session.events & ~READ)
        session.client.has_left = True
        for _, future in list(session.futures.values()):
            future.cancel()

    def _take_requests(self, session: GatewaySession, until: float) -> None:
        connection = session.connection
        try:
            if self._dispatcher.take(session, until):
                self._take_later(session)
        except (InvalidFrame, Malformed, CloseConnection) as error:
            server_events.refused(session, error)
            self._end(session, str(error))
            return
        except Exception as error:  # noqa: BLE001 - one connection ends, the others continue
            self.counters.failures += 1
            server_events.defect(session, error)
            self._end(session, "failure")
            return
        sockets = self._members if (api_key := connection.api_key) in MEMBER_APIS else self._clients
        sockets.served_at = self._now if api_key in RECORD_APIS else sockets.served_at
        if sockets.epoll is not session.epoll and not session.leaving:
            self._move(session, sockets.epoll)
        if connection.owns_buffer or connection.start != connection.end:
            connection.settle()
            self._hold(session)
        elif session.working_bytes:
            self._hold(session)
        if connection.out:
            self._dirty.append(session)

    def _hold(self, session: GatewaySession) -> None:
        if session.connection.held_bytes + session.working_bytes == session.held_bytes or session.closed:
            return
        self._memory.count(session)
        while (largest := self._memory.connection_to_close(session, self._now)) is not None:
            server_events.pool_is_full(largest, self._memory.held_bytes, self._memory.limit_bytes)
            if largest.connection.unread_bytes or largest.working_bytes:
                self.close(
                    largest,
                    "the request memory pool is full; answers in memory or requests in progress hold most of it",
                )
            else:
                self._end(largest, "the request memory pool is full of incomplete requests")
            if not largest.closed:
                self._memory.count(largest)

    def complete(self, session: GatewaySession, pending: PendingReply, pieces: Sequence[Piece]) -> None:
        """Queues a delayed answer, and takes the requests that waited for it."""
        if session.closed:
            release(pieces)
            return
        session.last_active = self._loop.time()
        session.connection.complete(pending, pieces)
        self._hold(session)
        self._resume(session)
        self._dirty.append(session)
        if not self._dispatcher.is_ending_turn:
            self._flush_soon()

    def _resume(self, session: GatewaySession) -> None:
        """Takes requests that arrived while none could start, and then receives again."""
        if session.connection.has_rest:
            # This comes before receiving, because a whole frame may fill the connection's own buffer.
            self._take_later(session)
        else:
            self._receive(session)

    def _take_later(self, session: GatewaySession) -> None:
        if not session.resuming:
            session.resuming = True
            self._resuming.append(session)
            self._resume_soon()

    def _resume_soon(self) -> None:
        if not self._resume_scheduled:
            self._resume_scheduled = True
            self._loop.call_soon(self._take_resuming)

    def _take_resuming(self) -> None:
        """Takes requests that could not start when they arrived, or for which the last turns had no time."""
        self._resume_scheduled = False
        now = began = self._dispatcher.begin_turn()
        resuming = self._resuming
        count = len(resuming)
        share = share_of_slice(count)
        try:
            for _ in range(count):
                session = resuming.popleft()
                session.resuming = False
                if not session.closed and not self._stopping and session.ending is None:
                    self._take_requests(session, now + share)
                    self._receive(session)
                if (now := SECONDS()) >= began + SLICE_S:
                    break
        finally:
            if resuming:
                self._resume_soon()
            self._flush_and_count(began)

    def _receive(self, session: GatewaySession) -> None:
        if not (session.events & _IN or self._stopping or session.ending is not None or session.connection.stalled):
            self._watch(session, session.events | _IN)

    # --- sending ------------------------------------------------------------------------------------------------------
    def _flush_soon(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_later)

    def _flush_later(self) -> None:
        self._flush_scheduled = False
        began = SECONDS()
        self._dispatcher.end_turn()
        self._flush_and_count(began)

    def _flush_and_count(self, began: float) -> None:
        """Ends the turn that began at `began`, in seconds."""
        self.counters.busy_s += self._flush(SECONDS()) - began

    def _flush(self, now: float) -> float:
        """Writes the answers of the turn, with one write per connection. Returns the time after the last write."""
        if len(self._sessions) > WATCHED_BY_LOOP and self._dispatcher.has_writes:
            # More requests are likely to come in this turn of the loop. The records of all are then written together.
            self._flush_soon()
        else:
            self._dispatcher.end_turn()
        if not self._dirty:
            return SECONDS()
        dirty, self._dirty = self._dirty, []
        sender = self._sender
        sender.new_turn(len(dirty))
        for session in dirty:
            if session.closed or session.in_thread or session.events & _OUT:
                continue
            try:
                may_be_small = session.ending is None and not session.is_sending
                if not (may_be_small and sender.send_small(session.socket, session.connection)):
                    self._send(session)
                else:
                    sender.small_at = self._now
            except OSError as error:
                self.close(session, str(error))
            now = session.connection.wrote(now, SECONDS())
        if self._dirty:
            self._flush_soon()
        return now

    def _send(self, session: GatewaySession) -> None:
        connection, congested = session.connection, session.connection.congested
        progress = self._sender.send(session.socket, connection, session, self._thread_done)
        session.last_active, session.is_sending = self._now, progress is not Progress.DONE
        if progress is Progress.BLOCKED:
            self._watch(session, session.events | select.EPOLLOUT)
        elif progress is Progress.SHARED:
            self._dirty.append(session)
        elif progress is Progress.THREAD:
            session.in_thread = True
        elif session.ending is not None and not session.is_busy:
            self.close(session, session.ending)
            return
        self._hold(session)
        if congested and not connection.congested:
            self._resume(session)

    def _thread_done(self, session: GatewaySession, failure: OSError | None, is_full: bool) -> None:
        """Called when a thread has read the next bytes of `session`, or has sent as many as the socket took."""
        session.in_thread = False
        if failure is not None:
            self.close(session, str(failure))
        if session.closed:
            return
        if not session.connection.congested:
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
            # This is permanent, because a connection that blocks once will block again, and each change costs two system calls.
            self._by_loop.share(session)
        else:
            session.epoll.modify(session.fd, events)

    def _move(self, session: GatewaySession, epoll: select.epoll) -> None:
        """Moves the session to the epoll for its latest request. A leaving session stays, because a turn of its own epoll
        closes it, and the other epoll would until then wake the loop in vain."""
        if not session.by_loop:
            session.epoll.unregister(session.fd)
            epoll.register(session.fd, session.events)
        session.epoll = epoll

    def _end(self, session: GatewaySession, reason: str) -> None:
        """Takes no more requests, and closes when the answers to earlier requests are sent, as Kafka does."""
        if not session.is_busy:
            self.close(session, reason)
            return
        session.ending = reason
        session.connection.discard()
        self._watch(session, session.events & ~select.EPOLLIN)
        self._dirty.append(session)
        self._flush_soon()

    def close(self, session: GatewaySession, reason: str) -> None:
        """Closes at once and cancels delayed requests. An empty `reason` is not logged."""
        if session.closed:
            return
        if reason:
            server_events.closed(session, reason)
        session.closed = session.client.has_left = True
        del self._sessions[session.fd]
        if session.by_loop:
            self._by_loop.remove(session)
        else:
            with contextlib.suppress(OSError):
                session.epoll.unregister(session.fd)
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

    def _close_idle(self, sessions: deque[GatewaySession], oldest: float) -> None:
        """Closes idle connections in slices, because thousands may become idle together."""
        until = SECONDS() + SLICE_S
        while sessions:
            session = sessions.popleft()
            if not session.closed and session.last_active < oldest and not session.connection.waiting:
                self.close(session, "idle")
            if SECONDS() >= until:
                self._loop.call_soon(self._close_idle, sessions, oldest)
                return

    def _schedule_sweep(self) -> None:
        period = min(SWEEP_S, self._settings.connections_max_idle_ms / 4000)
        self._sweeper = self._loop.call_later(max(period, 0.01), self._sweep)

    def _sweep(self) -> None:
        """Closes idle connections. A connection that waits for an answer is not idle."""
        now = self._loop.time()
        oldest = now - self._settings.connections_max_idle_ms / 1000
        self._close_idle(deque(each for each in self._sessions.values() if each.last_active < oldest), oldest)
        self._memory.reclaim(now - SWEEP_S)
        self._acceptor.resume()
        self._schedule_sweep()
