"""A broker's connection to its controller: it registers the broker, sends heartbeats, and sends commands.

Invariants: a command keeps its number when it is sent again, so it is carried out once. The command's result is returned when
this broker's image has the change. At most MAX_COMMANDS commands are in flight, in at most MAX_CALLS calls. Commands that
arrive meanwhile share the next call.

A command whose calls time out may have been carried out, which the caller's error does not show.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar

import grpc
import grpc.aio

from grpc_api.channel import NodeChannel, answered
from grpc_api.messages.errors import error_of, error_of_call
from grpc_api.proto.errors_pb2 import ErrorDetail
from service.controller import controller_pb2 as pb
from service.controller.contacts import SESSION_S
from service.controller.controller_pb2_grpc import ControllerStub
from service.controller.follower import MetadataFollower
from service.controller.limits import MAX_COMMANDS_OF_A_CALL, MAX_REQUEST_BYTES
from service.controller.reconnection import Reconnection
from service.lifecycle.lease import Lease
from service.metadata.command_codec import decode_result, encode_command
from service.metadata.commands import Command, RegisterBroker, Result
from storage_tiers import events
from storage_tiers.backoff import Backoff, BackoffSettings
from storage_tiers.errors import (
    BrokerFenced,
    BrokerNotRegistered,
    DuplicateBroker,
    LeaderNotAvailable,
    LogError,
    RequestTimedOut,
    StaleBrokerEpoch,
)

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

#: The maximum number of this broker's commands in flight. The controller keeps the results of more
#: (`MAX_UNCONFIRMED_COMMANDS`).
MAX_COMMANDS = 256
#: The maximum number of calls with commands in flight. A call costs more processor time than a command, and one call may be on
#: its way while the controller carries out another.
MAX_CALLS = 2
#: The maximum number of bytes of a call's commands. A call with a single command may be larger.
MAX_CALL_BYTES = MAX_REQUEST_BYTES // 4
#: Seconds for which an unanswered command is sent again, and seconds for which its change is then awaited in this broker's
#: image.
COMMAND_TIMEOUT_S = 30.0
#: Seconds between two heartbeats, and the timeout of an answer, after which the stream is abandoned.
HEARTBEAT_S, ANSWER_TIMEOUT_S = 0.5, 5.0
#: Milliseconds of silence after which the controller fences a broker.
SESSION_MS = round(SESSION_S * 1000)
RETRYING = BackoffSettings(first=0.05, longest=1.0)


class _Queued(NamedTuple):
    """A command that waits for a call, and the future of its outcome."""

    command: pb.NumberedCommand
    answer: asyncio.Future[pb.Outcome]


class RemoteController:
    """Implements `service.metadata.controller.Commands` for the broker `broker_id`, which `register` has registered."""

    def __init__(self, controller: NodeChannel, follower: MetadataFollower, broker_id: int) -> None:
        self._controller = controller
        self._stub = ControllerStub(controller.channel)
        self._reconnection = Reconnection(controller.channel)
        self._follower = follower
        self._broker_id = broker_id
        self.broker_epoch = -1
        self.fenced = True
        #: Limits how long this broker may lead without an answer from its controller; expired until the broker has registered.
        self.lease = Lease(0)
        #: The time of the last registration or heartbeat sent, and whether the heartbeat's stream has had no answer yet.
        self._sent_ms = 0
        self._is_first = True
        self._next = 0
        self._unanswered: set[int] = set()
        self._slots = asyncio.Semaphore(MAX_COMMANDS)
        self._queue: deque[_Queued] = deque()
        #: The number of calls with commands in flight, and their tasks, which the loop itself would not keep.
        self._calls = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._may_stop = asyncio.Event()

    async def register(self, command: RegisterBroker, cluster_id: str) -> None:
        """Registers this start, however long the controller takes to answer. Returns once this broker's image has the
        registration. Raises the LogError of a refusal. DuplicateBroker is retried for one session, because the controller may
        not have noticed yet that the other broker of that id died. The other broker may be an earlier start of this one, whose
        disk was lost."""
        request = pb.RegisterRequest(cluster_id=cluster_id, command=encode_command(command))
        clock = self._controller.clock
        deadline = clock.monotonic() + SESSION_S + 1
        while True:
            self._sent_ms = clock.steady_ms()
            try:
                reply = await self._retry_until_deadline(
                    lambda: answered(self._stub.Register(request, timeout=COMMAND_TIMEOUT_S), self._controller.address),
                    None,
                )
                break
            except DuplicateBroker as error:
                if clock.monotonic() >= deadline:
                    raise
                events.debug(log, "controller.retried", error=error)
                await asyncio.sleep(HEARTBEAT_S)
        self.broker_epoch = reply.broker_epoch
        self._touch()
        await self._follower.reach(reply.offset, COMMAND_TIMEOUT_S)

    async def execute(self, command: Command[Result]) -> Result:
        """Implements `Commands.execute`. A command whose call fails in transit is sent again, with the same number, for up to
        COMMAND_TIMEOUT_S."""
        encoded = encode_command(command)
        if self._follower.is_ahead:
            raise RequestTimedOut(
                f"the controller at {self._controller.address} runs on an older data directory; nothing was changed, retry "
                "once it runs on the newest one"
            )
        async with self._slots:
            sequence, self._next = self._next, self._next + 1
            self._unanswered.add(sequence)
            numbered = pb.NumberedCommand(sequence=sequence, command=encoded)
            deadline = self._controller.clock.monotonic() + COMMAND_TIMEOUT_S
            try:
                outcome = await self._retry_until_deadline(lambda: self._outcome(numbered), deadline)
            finally:
                self._unanswered.discard(sequence)
        await self._follower.reach(outcome.offset, COMMAND_TIMEOUT_S)
        result: Result = decode_result(outcome.result)
        return result

    async def _outcome(self, command: pb.NumberedCommand) -> pb.Outcome:
        """Sends the command with the next call. Raises the LogError of the call, or the one that refuses the command."""
        queued = _Queued(command, asyncio.get_running_loop().create_future())
        self._queue.append(queued)
        self._call_next()
        outcome = await queued.answer
        if outcome.error:
            raise error_of(ErrorDetail.FromString(outcome.error))
        return outcome

    def _call_next(self) -> None:
        """Begins calls for queued commands, at most MAX_CALLS at a time."""
        while self._queue and self._calls < MAX_CALLS:
            taken = [self._queue.popleft()]
            size = len(taken[0].command.command)
            while self._queue and len(taken) < MAX_COMMANDS_OF_A_CALL:
                size += len(self._queue[0].command.command)
                if size > MAX_CALL_BYTES:
                    break
                taken.append(self._queue.popleft())
            self._calls += 1
            call = asyncio.get_running_loop().create_task(self._call(taken))
            self._tasks.add(call)
            call.add_done_callback(self._tasks.discard)

    async def _call(self, queued: Sequence[_Queued]) -> None:
        """Sends the commands whose callers still wait, and hands each caller its outcome or an error of its own."""
        sent = [each for each in queued if not each.answer.done()]
        request = pb.ExecuteRequest(
            broker_id=self._broker_id,
            broker_epoch=self.broker_epoch,
            answered_below=min(self._unanswered, default=self._next),
            commands=[each.command for each in sent],
        )
        error_of_each: Callable[[], Exception] = partial(
            LeaderNotAvailable, "the call to the controller was ended on this side"
        )
        try:
            reply = await self._stub.Execute(request, timeout=COMMAND_TIMEOUT_S)
            for each, outcome in zip(sent, reply.outcomes, strict=True):
                if not each.answer.done():
                    each.answer.set_result(outcome)
        except grpc.aio.AioRpcError as failure:
            error_of_each = partial(error_of_call, failure, self._controller.address)
        finally:
            for each in sent:
                if not each.answer.done():
                    each.answer.set_exception(error_of_each())
            self._calls -= 1
            self._call_next()

    async def _retry_until_deadline(self, call: Callable[[], Awaitable[Answer]], deadline: float | None) -> Answer:
        """Returns the answer. Calls that the channel loses, or that arrive before this broker is unfenced, are sent again."""
        backoff, clock = Backoff(RETRYING, self._controller.rng), self._controller.clock
        while True:
            try:
                return await call()
            except (LeaderNotAvailable, BrokerFenced) as error:
                delay = backoff.next_delay()
                if deadline is not None and clock.monotonic() + delay > deadline:
                    raise
                events.debug(log, "controller.retried", error=error)
                await self._reconnection.pause(delay)

    # --- heartbeats ---------------------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Sends heartbeats, which say that this broker is ready to lead, until it is cancelled. Raises StaleBrokerEpoch or
        BrokerNotRegistered if a newer process has this broker's id, so that this one must end."""
        backoff = Backoff(RETRYING, self._controller.rng)
        while True:
            try:
                await self._beat(backoff)
            except grpc.aio.AioRpcError as failure:
                error: LogError = error_of_call(failure, self._controller.address)
                if isinstance(error, (StaleBrokerEpoch, BrokerNotRegistered)):
                    raise error from None
                if isinstance(error, LeaderNotAvailable):
                    self._unanswered_beat()
                events.debug(log, "controller.heartbeat_lost", error=error)
            except (TimeoutError, asyncio.InvalidStateError) as lost:
                # No answer came in time, or the stream ended between two heartbeats.
                self._unanswered_beat()
                events.debug(log, "controller.heartbeat_lost", error=lost)
            await self._reconnection.pause(backoff.next_delay())

    def _touch(self) -> None:
        self.lease.touched(self._sent_ms, SESSION_MS)

    def _unanswered_beat(self) -> None:
        """Lets this broker continue to lead while the controller is unreachable, since the controller then elects no other
        leader. The end of a stream that had answers does not show that the controller is unreachable: the stream of a paused
        broker ends as well, and the next answer may name a successor."""
        if self._is_first:
            self._touch()

    async def stop(self, timeout_s: float) -> None:
        """Gives up leaderships. Returns once the controller has moved them, or after `timeout_s`."""
        self._stopping.set()
        try:
            async with asyncio.timeout(timeout_s):
                await self._may_stop.wait()
        except TimeoutError:
            events.warning(log, "controller.stop_unconfirmed", after_s=timeout_s)

    async def _beat(self, backoff: Backoff) -> None:
        """Sends heartbeats on one stream until it ends. Raises AioRpcError, or TimeoutError without an answer."""
        stream = self._stub.Heartbeat()
        self._is_first = True
        try:
            while True:
                stopping = self._stopping.is_set()
                request = pb.HeartbeatRequest(
                    broker_id=self._broker_id, broker_epoch=self.broker_epoch, ready=True, wants_to_stop=stopping
                )
                self._sent_ms = self._controller.clock.steady_ms()
                await stream.write(request)
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    reply = await stream.read()
                if reply is grpc.aio.EOF:
                    return
                backoff.succeeded()
                self._is_first = False
                self._touch()
                self.fenced = reply.fenced
                if reply.may_stop:
                    self._may_stop.set()
                await self._pause(stopping)
        finally:
            stream.cancel()

    async def _pause(self, stopping: bool) -> None:
        """Waits until the next heartbeat is due, or until the broker begins to stop."""
        if stopping:
            await asyncio.sleep(HEARTBEAT_S)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(HEARTBEAT_S):
                await self._stopping.wait()
