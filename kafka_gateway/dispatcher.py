"""Starts the requests of connections and makes their delayed answers. It never touches a socket.

A handler answers at once, or returns a future (`DelayedReply`) or a coroutine; only a coroutine gets a task. Most futures end
with the turn that began them, because a coordinator writes its decisions at the end of the turn. A callback costs two calls
of the loop, so only a future that outlasts its turn gets one. The server owns sockets and memory: it closes a connection when
`take` raises, and receives delayed answers through `Owner`.

Invariant: `working_bytes` of a session covers the request that it works on or waits for, until its answer is made.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from grpc_api.contract.node import NodeCore
from kafka_gateway import server_events
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
)
from kafka_gateway.fetch_sessions import FetchSessionCache
from kafka_gateway.handlers.api_versions import ApiVersionsHandler
from kafka_gateway.handlers.fetch import FetchHandler
from kafka_gateway.hot_parse import Malformed
from kafka_gateway.options import Options
from kafka_gateway.registry import Api, by_key
from kafka_gateway.reply import CloseConnection, DelayedReply, Handler, Made, Reply
from kafka_gateway.session import GatewayCounters, GatewaySession
from storage_tiers.errors import RequestTimedOut

#: Requests of one connection started in one turn; a client may send thousands in one segment.
REQUESTS_A_TURN = 256
#: Memory of a delayed Fetch, as a multiple of its request's size: a partition uses 400 bytes of memory, and 16 in the request.
DELAYED_FETCH_FACTOR = 25
#: Waiting requests below this size are not counted; most consumers send no larger ones.
UNCOUNTED_BYTES = 1 << 10
#: APIs whose requests may wait for minutes (Fetch, JoinGroup, SyncGroup), and are cancelled when their client disconnects.
GIVEN_UP = frozenset({FETCH, 11, 14})
#: The clock of turns and of request metrics, in seconds. The event loop's own is too coarse for both.
SECONDS = time.perf_counter  # noqa: TID251 - the shell


# A NamedTuple's own constructor costs three times as much.
_new_tuple = tuple.__new__


class Owner(Protocol):
    """The server, as the dispatcher sees it."""

    def close(self, session: GatewaySession, reason: str) -> None: ...

    def complete(self, session: GatewaySession, pending: PendingReply, pieces: Sequence[Piece]) -> None:
        """Takes a finished delayed answer, and the ownership of the files among its pieces."""


class BegunReply(NamedTuple):
    """A delayed reply of the current turn. `since` has the times when its request could start and when its handler
    returned."""

    session: GatewaySession
    pending: PendingReply
    delayed: DelayedReply
    api_key: int
    since: tuple[float, float]


class Dispatcher:
    """`turn_began` is the time at which the turn began, by the clock SECONDS. Request metrics count from it."""

    def __init__(
        self, core: NodeCore, options: Options, apis: tuple[Api, ...], owner: Owner, counters: GatewayCounters
    ) -> None:
        table = by_key(apis).values()
        self._handlers: dict[int, Handler] = {api.key: api.build(core, options) for api in table}
        #: The metrics of each API, by its name.
        self.metrics = {api.name: RequestMetrics() for api in table}
        self.apis: Apis = {
            api.key: (api.served_from, api.highest, self._handlers[api.key].handle, self.metrics[api.name])
            for api in table
        }
        self._loop = asyncio.get_running_loop()
        self._request_context = options.request_context
        self._owner = owner
        self._counters = counters
        self._tasks: set[asyncio.Task[Any]] = set()
        self._turns = core.turns
        #: Whether the turn is ending. The server then sends completed answers without a further flush.
        self.is_ending_turn = False
        #: Delayed replies of this turn.
        self._begun: list[BegunReply] = []
        self._stopping = False
        self.turn_began = SECONDS()

    @property
    def errors(self) -> Iterator[tuple[str, Counter[int]]]:
        """Yields each API's name, and how often each error code was answered."""
        for name, handler in zip(self.metrics, self._handlers.values(), strict=True):
            yield name, handler.errors

    @property
    def fetch_sessions(self) -> FetchSessionCache | None:
        return next((each.sessions for each in self._handlers.values() if isinstance(each, FetchHandler)), None)

    def stop(self, sessions: Mapping[int, GatewaySession]) -> None:
        """Cancels all delayed answers except those of Produce, because no records will come, but acknowledgements still may."""
        self._stopping = True
        for session in list(sessions.values()):
            for api_key, future in list(session.futures.values()):
                if api_key != PRODUCE:
                    future.cancel()

    # --- turns --------------------------------------------------------------------------------------------------------
    def begin_turn(self) -> float:
        """Begins a turn. Returns the time of its beginning, by the clock SECONDS."""
        self._turns.begin()
        self.turn_began = began = SECONDS()
        return began

    @property
    def has_writes(self) -> bool:
        """Whether the turn's requests made decisions that are written at the end of the turn."""
        return self._turns.has_writes

    def end_turn(self) -> None:
        """Makes the answers that are ready now; the others are made when their futures end."""
        begun, self._begun = self._begun, []
        self.is_ending_turn = True
        try:
            self._turns.end()
        finally:
            self._watch(begun)
            self.is_ending_turn = False

    def _watch(self, begun: Sequence[BegunReply]) -> None:
        for reply in begun:
            future = reply.delayed.future
            if not future.done():
                future.add_done_callback(functools.partial(self._answered, reply))
                continue
            try:
                self._answered(reply, future)
            except Exception as error:  # noqa: BLE001 - one connection ends, the others get their answers
                self._defect(reply.session, error)

    # --- starting requests --------------------------------------------------------------------------------------------
    def take(self, session: GatewaySession, until: float) -> bool:
        """Starts requests that have arrived: at least one, and none after `until` (a time of the clock SECONDS). Returns
        whether it stopped early. The connection must be closed if it raises: InvalidFrame, Malformed, CloseConnection, or
        any other exception of a handler, which is a defect."""
        connection = session.connection
        self._request_context.client = session.client
        try:
            started = connection.take(
                self.apis, REQUESTS_A_TURN, self._otherwise, session, SECONDS, self.turn_began, until
            )
            if started == REQUESTS_A_TURN or connection.paused:
                return True
            if connection.start != connection.end:
                self._refuse_early(connection)
            return False
        finally:
            self._counters.requests += connection.taken
            connection.taken = 0

    def _refuse_early(self, connection: Connection) -> None:
        """Raises CloseConnection for an incomplete request that is not served, instead of waiting for the rest."""
        begun = connection.begun()
        if begun is None:
            return
        api = self.apis.get(begun[0])
        if api is None or not api[0] <= begun[1] <= api[1]:
            self._unserved(begun[0], begun[1], 0)

    def _otherwise(
        self, session: GatewaySession, api_key: int, version: int, correlation: int, reply: Reply | None
    ) -> None:
        """Takes the requests and replies that `Connection.take` cannot handle itself. Raises CloseConnection."""
        if reply is None:
            session.connection.answer(self._unserved(api_key, version, correlation))
        else:
            self._take_reply(session, api_key, reply)

    def _unserved(self, api_key: int, version: int, correlation: int) -> Sequence[Piece]:
        """Refuses a request that is not served. Raises CloseConnection; only ApiVersions has an answer (KIP-511)."""
        handler = self._handlers.get(api_key)
        if isinstance(handler, ApiVersionsHandler):
            return handler.unsupported(correlation)
        raise CloseConnection(f"api key {api_key} version {version} is not served")

    # --- delayed answers ----------------------------------------------------------------------------------------------
    def _take_reply(self, session: GatewaySession, api_key: int, reply: Reply) -> None:
        connection = session.connection
        if isinstance(reply, DelayedReply):
            pending = connection.delay(api_key)
            session.futures[pending] = (api_key, reply.future)
            if api_key in GIVEN_UP and connection.request_size > UNCOUNTED_BYTES:
                session.working_bytes = connection.request_size * (DELAYED_FETCH_FACTOR if api_key == FETCH else 1)
            since = self.turn_began, SECONDS()
            self._begun.append(_new_tuple(BegunReply, (session, pending, reply, api_key, since)))
        elif asyncio.iscoroutine(reply):
            pending = connection.delay(ALONE)
            session.working_bytes = connection.request_size * (DELAYED_FETCH_FACTOR if api_key == FETCH else 1)
            task: asyncio.Task[Sequence[Piece]] = self._loop.create_task(reply)
            if api_key in GIVEN_UP:
                session.futures[pending] = (api_key, task)
            self._tasks.add(task)
            since = self.turn_began, SECONDS()
            task.add_done_callback(functools.partial(self._worked, session, pending, api_key, since))
        else:
            connection.answered(self.apis[api_key][3], SECONDS() - self.turn_began, SECONDS())
            connection.answer(reply)

    def _answered(self, reply: BegunReply, future: asyncio.Future[Any]) -> None:
        """Called when the future of a delayed reply has ended."""
        session, pending, delayed, api_key, since = reply
        session.futures.pop(pending, None)
        self._count_delayed(session, api_key, since)
        pieces: Made = ()
        try:
            if not future.cancelled():
                failure = future.exception()
                pieces = delayed.finish(future.result()) if failure is None else delayed.refuse(failure)
            elif not self._stopping and not session.closed:
                pieces = delayed.refuse(RequestTimedOut("the broker cancelled this request; retry"))
        except CloseConnection as error:
            self._owner.close(session, str(error))
            return
        except Exception as error:  # noqa: BLE001 - one connection ends, the others continue
            self._defect(session, error)
            return
        if type(pieces) is not tuple and asyncio.iscoroutine(pieces):  # the second check costs more
            self._finish_in_task(session, pending, api_key, pieces)
        else:
            session.working_bytes = 0
            self._owner.complete(session, pending, pieces)

    def _finish_in_task(
        self,
        session: GatewaySession,
        pending: PendingReply,
        api_key: int,
        made: Coroutine[Any, Any, Sequence[Piece]],
    ) -> None:
        """Makes a large delayed answer in slices."""
        task: asyncio.Task[Sequence[Piece]] = self._loop.create_task(made)
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._worked, session, pending, api_key, None))

    def _worked(
        self,
        session: GatewaySession,
        pending: PendingReply,
        api_key: int,
        since: tuple[float, float] | None,
        task: asyncio.Task[Sequence[Piece]],
    ) -> None:
        """Called when the task of a request has ended."""
        self._tasks.discard(task)
        session.futures.pop(pending, None)
        session.working_bytes = 0
        if since is not None:  # otherwise it was counted when its future ended
            self._count_delayed(session, api_key, since)
        if task.cancelled():
            self._owner.close(session, "" if session.client.has_left else "its request was cancelled")
        elif isinstance(failure := task.exception(), InvalidFrame | Malformed | CloseConnection):
            server_events.refused(session, failure)
            self._owner.close(session, str(failure))
        elif failure is not None:
            self._defect(session, failure)
        else:
            self._owner.complete(session, pending, task.result())

    def _count_delayed(self, session: GatewaySession, api_key: int, since: tuple[float, float]) -> None:
        """Counts a delayed answer, made or cancelled. `since` has the times when its request could start and when its handler
        returned."""
        metrics = self.apis[api_key][3]
        self.turn_began = now = SECONDS()
        metrics.waits += 1
        metrics.remote_s += now - since[1]
        session.connection.answered(metrics, now - since[0], now)

    def _defect(self, session: GatewaySession, failure: BaseException) -> None:
        self._counters.failures += 1
        server_events.defect(session, failure)
        self._owner.close(session, "failure")
