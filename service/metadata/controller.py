"""The controller carries out commands, one after another, each on the newest state.

A broker that has its controller in its own process calls `execute`. A command of another process comes with its
`CommandOrigin`. A repeated command gets the result of the first, and is not carried out twice. This also holds across a restart
of the controller, because the batch of the command's records in the metadata log includes the result.

Only the controller proposes changes of a running node's metadata. A take-over writes the first records of its directory, as a
snapshot would, before there is a controller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any, NamedTuple, Protocol

from service.metadata import records_pb2 as pb
from service.metadata.command_codec import decode_result, encode_result
from service.metadata.commands import Command, Result, plan
from service.metadata.log import MetadataLog
from service.metadata.planner import ConfigRules
from service.metadata.registrations import registration
from storage_tiers.errors import BrokerFenced, InvalidRequest

#: Most results that are kept for one broker because it may not have received them. Brokers send fewer commands at a time.
MAX_UNCONFIRMED_COMMANDS = 1024


class Commands(Protocol):
    """Carries out a broker's commands. Implemented by a controller in the same process, and by the connection to one in another
    process."""

    async def execute(self, command: Command[Result]) -> Result:
        """Returns the command's result, once this broker's image has the change. Raises the command's LogError if it cannot be
        carried out, and StorageError if the outcome is unknown (retry later)."""


class CommandOrigin(NamedTuple):
    """The broker that sends a command, under the epoch of its registration. `sequence` rises with each command; a repeated
    command keeps its number. The broker has received the answers of all commands below `answered_below`."""

    broker_id: int
    broker_epoch: int
    sequence: int
    answered_below: int


class CommandAnswer(NamedTuple):
    """A command's result, and the metadata offset (the index of an entry) from which an image has its change."""

    encoded_result: bytes
    offset: int

    @property
    def result(self) -> Any:
        return decode_result(self.encoded_result)


class PendingAnswer:
    """Awaits the log entry on which a command's answer depends; `waiting` is None if that entry is durable. Raises the
    StorageError of an entry that could not be written."""

    __slots__ = ("_encoded_result", "_log", "_waiting")

    def __init__(self, encoded_result: bytes, waiting: asyncio.Future[int] | None, log: MetadataLog) -> None:
        self._encoded_result = encoded_result
        self._waiting = waiting
        self._log = log

    def __await__(self) -> Generator[Any, None, CommandAnswer]:
        waiting = self._waiting
        offset = self._log.last_index if waiting is None else (yield from asyncio.shield(waiting).__await__())
        return CommandAnswer(self._encoded_result, offset)


class Controller:
    """Plans with the node's own `configs`. Not thread-safe: call it on the event loop."""

    def __init__(self, metadata: MetadataLog, configs: ConfigRules) -> None:
        self._metadata = metadata
        self._configs = configs
        #: Commands of other processes that wait for the disk.
        self._under_way: dict[tuple[int, int, int], asyncio.Future[int]] = {}

    async def execute(self, command: Command[Result]) -> Result:
        """Returns the command's result, once its records are durable and applied. A command without records waits for the
        records that its plan is based on. Raises the command's LogError if it cannot be carried out, and the errors of
        `MetadataLog.propose`."""
        records, result = plan(self._metadata.proposed, command, self._configs)
        await (self._metadata.propose(records) if records else self._metadata.settled())
        return result

    def answer(self, command: Command[Any], origin: CommandOrigin) -> PendingAnswer:
        """Does the same as `execute` for a broker in another process, but carries out a repeated command only once. The call
        itself proposes the command's records, and awaiting the answer waits until they are durable, so commands of one caller
        share an fsync.

        Also raises BrokerNotRegistered or StaleBrokerEpoch if the broker's registration is not the current one, BrokerFenced if
        the broker is fenced, and InvalidRequest if the broker has too many unconfirmed commands or has already confirmed this
        one."""
        broker_id, broker_epoch, sequence, answered_below = origin
        key = (broker_id, broker_epoch, sequence)
        result = self._result_of(origin)
        if result is not None:
            return PendingAnswer(result, self._under_way.get(key), self._metadata)
        if registration(self._metadata.proposed, broker_id, broker_epoch).fenced:
            raise BrokerFenced(f"broker {broker_id} is fenced until its heartbeats come again; retry")
        records, done = plan(self._metadata.proposed, command, self._configs)
        result = encode_result(done)
        if not records:
            return PendingAnswer(result, self._metadata.newest_waiting, self._metadata)
        record = pb.CommandRecord(
            broker_id=broker_id,
            broker_epoch=broker_epoch,
            sequence=sequence,
            answered_below=answered_below,
            result=result,
        )
        proposal = self._metadata.propose((*records, pb.MetadataRecord(command=record)))
        self._under_way[key] = proposal
        proposal.add_done_callback(lambda _: self._under_way.pop(key, None))
        return PendingAnswer(result, proposal, self._metadata)

    def _result_of(self, origin: CommandOrigin) -> bytes | None:
        """Returns the encoded result of a command that was accepted before, even if its records still wait for the disk."""
        registration(self._metadata.proposed, origin.broker_id, origin.broker_epoch)
        session = self._metadata.proposed.sessions.get(origin.broker_id)
        if session is None:
            return None
        if origin.sequence < session.answered_below:
            raise InvalidRequest(f"broker {origin.broker_id} has confirmed the answer of its command {origin.sequence}")
        if origin.sequence in session.results:
            return session.results[origin.sequence]
        if len(session.results) < MAX_UNCONFIRMED_COMMANDS:
            return None
        kept = sum(number >= origin.answered_below for number in session.results)
        if kept >= MAX_UNCONFIRMED_COMMANDS:
            raise InvalidRequest(
                f"broker {origin.broker_id} has {kept} commands whose answers it has not confirmed; confirm them first"
            )
        return None
