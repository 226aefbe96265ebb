"""The controller's side of its gRPC service: registrations, heartbeats, commands, and the metadata that brokers follow.

Invariants: only a heartbeat of a broker's current registration unfences it. A call that names another cluster, or an outdated
or unknown registration, is refused and changes nothing. A command that only the controller's own process may send is refused,
too. A connection has at most MAX_CALLS_OF_ONE requests of MAX_REQUEST_BYTES in memory, and a follower gets its next entry once
it has read the previous one. However many calls arrive together, each turn of the loop begins one call, and further calls only
within its slice; heartbeats have a slice of their own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from grpc_api.contract.topics import text_of
from grpc_api.limits import server_options
from grpc_api.listening import every_address
from grpc_api.messages.errors import detail_of
from grpc_api.servicers.errors import DEFECT, ending
from grpc_api.servicers.parsing import check_fields
from service.controller import controller_pb2 as pb
from service.controller.contacts import Contact, Contacts
from service.controller.controller_pb2_grpc import ControllerServicer, add_ControllerServicer_to_server
from service.controller.limits import MAX_COMMANDS_OF_A_CALL, MAX_REQUEST_BYTES
from service.controller.room import MAX_ACCEPTED, Room
from service.metadata import records_pb2 as records
from service.metadata.command_codec import decode_command
from service.metadata.commands import FenceBroker, RegisterBroker, ShutDownBroker, SkipProducerIds, UnfenceBroker
from service.metadata.commands_pb2 import Command
from service.metadata.controller import CommandOrigin, Controller, PendingAnswer
from service.metadata.history import has_entry
from service.metadata.log import MetadataLog
from service.metadata.registrations import MAX_REGISTRATION_BYTES, elsewhere, registration
from service.metadata.snapshot import to_records
from storage_tiers import events
from storage_tiers.clock import Clock
from storage_tiers.errors import Busy, InvalidConfig, InvalidRequest, LogError, WrongCluster
from storage_tiers.turns import TurnScheduler

log = logging.getLogger(__name__)

#: The maximum number of a snapshot's records in one message, and of bytes in a message with more than one record.
SNAPSHOT_RECORDS, SNAPSHOT_BYTES = 200, 256 << 10
#: The maximum number of Follow streams of one connection, and of Heartbeat streams. A broker has one of each, and replaces a
#: broken one.
MAX_STREAMS_OF_ONE = 8
#: The maximum number of concurrent calls of a connection; further calls wait in the client. There are at most MAX_ACCEPTED
#: connections.
MAX_CALLS_OF_ONE = 64
#: The maximum number of fields of one command. The creation of a topic of 10,000 partitions with assignments has 40,000, and
#: other commands have fewer.
MAX_FIELDS = 1 << 16
#: Seconds within which calls in flight may finish when the controller stops.
STOP_S = 0.5
#: Seconds between two checks for silent brokers.
LOOK_S = 0.1


@asynccontextmanager
async def serving(service: ControllerService, host: str, port: int) -> AsyncIterator[int]:
    """Serves on that address (an empty host: every address; port 0: a free one), yields the port, and fences silent brokers
    meanwhile. Raises InvalidConfig if the address cannot be bound."""
    bounds = {
        **dict(server_options(MAX_ACCEPTED)),
        "grpc.max_receive_message_length": MAX_REQUEST_BYTES,
        "grpc.max_concurrent_streams": MAX_CALLS_OF_ONE,
    }
    server = grpc.aio.server(options=tuple(bounds.items()))
    add_ControllerServicer_to_server(service, server)
    address = text_of(host or every_address(), port)
    try:
        bound = server.add_insecure_port(address)
    except RuntimeError:
        raise InvalidConfig(
            f"cannot listen on {address} for brokers; stop the process using it, or choose another address"
        ) from None
    await server.start()
    loop = asyncio.get_running_loop()
    watching = loop.create_task(service.run(), name="silent brokers")
    keeping = loop.create_task(service.room.keep(bound), name="connections")
    try:
        yield bound
    finally:
        watching.cancel()
        keeping.cancel()
        await server.stop(STOP_S)


class ControllerService(ControllerServicer):
    """Serves `controller`, whose log is `metadata`. `run` fences silent brokers until it is cancelled; the broker `local` is in
    this process and sends no heartbeats."""

    def __init__(
        self, metadata: MetadataLog, controller: Controller, contacts: Contacts, clock: Clock, *, local: int = -1
    ) -> None:
        self._metadata = metadata
        self._controller = controller
        self._contacts = contacts
        self._clock = clock
        self._local = local
        self.room = Room()
        self._calls, self._beats = TurnScheduler(), TurnScheduler()
        #: The number of open streams by method and connection.
        self._streams: Counter[tuple[str, str]] = Counter()
        self._has_skipped_ids = False

    async def run(self) -> None:
        brokers = self._metadata.image.brokers.values()
        live = [broker for broker in brokers if not broker.fenced and broker.broker_id != self._local]
        self._contacts.begin(
            (Contact(broker.broker_id, broker.broker_epoch) for broker in live), self._clock.monotonic()
        )
        while True:
            for contact in self._contacts.overdue(self._clock.monotonic()):
                await self._fence(contact)
            await self._clock.sleep(LOOK_S)

    async def _fence(self, contact: Contact) -> None:
        silent = self._metadata.image.brokers.get(contact.broker_id)
        say = events.info if silent is not None and silent.shutting_down else events.warning
        try:
            await self._controller.execute(FenceBroker(*contact))
        except LogError as error:
            # The disk failed, or a newer start has registered. If the registration is still current, the next check tries
            # again.
            events.warning(log, "broker.not_fenced", broker=contact.broker_id, error=error)
            known = self._metadata.image.brokers.get(contact.broker_id)
            if known is not None and known.broker_epoch == contact.broker_epoch and not known.fenced:
                self._contacts.heard(contact, self._clock.monotonic())
        else:
            say(log, "broker.fenced", broker=contact.broker_id, epoch=contact.broker_epoch)

    # --- calls --------------------------------------------------------------------------------------------------------
    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.RegisterReply:  # noqa: N802
        async with ending("Register", context):
            self._check_cluster(request.cluster_id)
            if (size := len(request.command)) > MAX_REGISTRATION_BYTES:
                raise InvalidRequest(
                    f"the registration has {size} bytes, and {MAX_REGISTRATION_BYTES} is the maximum; give it fewer "
                    "listeners, or shorter names"
                )
            await self._calls.begin()
            command = decode_command(request.command)
            if not isinstance(command, RegisterBroker) or not command.fenced:
                raise InvalidRequest("Register takes a RegisterBroker command of a fenced broker")
            epoch = await self._controller.execute(command)
            events.info(log, "broker.registered", broker=command.broker_id, epoch=epoch)
            if lost := elsewhere(self._metadata.image, command.broker_id):
                events.error(log, "broker.disk_replaced", broker=command.broker_id, partitions=lost)
            return pb.RegisterReply(broker_epoch=epoch, offset=self._metadata.last_index)
        return pb.RegisterReply()

    async def Execute(self, request: pb.ExecuteRequest, context: Any) -> pb.ExecuteReply:  # noqa: N802
        async with ending("Execute", context):
            registration(self._metadata.proposed, request.broker_id, request.broker_epoch)
            if (count := len(request.commands)) > MAX_COMMANDS_OF_A_CALL:
                raise InvalidRequest(f"the call has {count} commands, and {MAX_COMMANDS_OF_A_CALL} is the maximum")
            # All commands are proposed before the first is awaited, so that they share an fsync.
            pending = [await self._proposed(request, numbered) for numbered in request.commands]
            return pb.ExecuteReply(outcomes=[await _outcome(each, context.peer()) for each in pending])
        return pb.ExecuteReply()

    async def _proposed(self, request: pb.ExecuteRequest, numbered: pb.NumberedCommand) -> PendingAnswer | LogError:
        """The answer of one command of the call, or the error that refuses this command only."""
        origin = CommandOrigin(request.broker_id, request.broker_epoch, numbered.sequence, request.answered_below)
        await self._calls.begin()
        try:
            check_fields(Command.FromString, numbered.command, MAX_FIELDS)
            return self._controller.answer(decode_command(numbered.command, of_broker=request.broker_id), origin)
        except LogError as error:
            return error
        except Exception as error:  # noqa: BLE001 - the other commands of the call are not affected
            events.error(log, "request.defect", server="grpc", api="Execute", defect=error)
            return LogError(DEFECT)

    async def Heartbeat(  # noqa: N802
        self, requests: AsyncIterator[pb.HeartbeatRequest], context: Any
    ) -> AsyncIterator[pb.HeartbeatReply]:
        contact: Contact | None = None
        try:
            async with ending("Heartbeat", context), self._stream("Heartbeat", context):
                async for request in requests:
                    await self._beats.begin()
                    contact = self._contact(request, contact)
                    self.room.beat(contact.broker_id, context.peer())
                    yield await self._beat(contact, request)
        finally:
            if contact is not None:
                self._contacts.ended(contact, self._clock.monotonic())

    def _contact(self, request: pb.HeartbeatRequest, known: Contact | None) -> Contact:
        """Returns the stream's registration, which its first request sets. Raises InvalidRequest for a request of another
        registration."""
        asked = Contact(request.broker_id, request.broker_epoch)
        registration(self._metadata.proposed, *asked)
        if known is None:
            self._contacts.opened(asked, self._clock.monotonic())
        elif asked != known:
            raise InvalidRequest("a heartbeat stream belongs to one registration; open another stream")
        return asked

    async def _beat(self, contact: Contact, request: pb.HeartbeatRequest) -> pb.HeartbeatReply:
        self._contacts.heard(contact, self._clock.monotonic())
        broker = registration(self._metadata.proposed, *contact)
        if request.wants_to_stop:
            await self._controller.execute(ShutDownBroker(*contact))
            return pb.HeartbeatReply(fenced=broker.fenced, may_stop=True)
        if request.ready and broker.fenced:
            await self._controller.execute(UnfenceBroker(*contact))
            events.info(log, "broker.unfenced", broker=contact.broker_id, epoch=contact.broker_epoch)
        return pb.HeartbeatReply(fenced=registration(self._metadata.proposed, *contact).fenced)

    async def Follow(self, request: pb.FollowRequest, context: Any) -> AsyncIterator[pb.FollowReply]:  # noqa: N802
        wake = asyncio.Event()
        leave = self._metadata.subscribe(lambda _image, _changes: wake.set())
        try:
            async with ending("Follow", context), self._stream("Follow", context):
                self._check_cluster(request.cluster_id)
                async for part in self._followed(request.offset, request.term, wake):
                    yield part
        finally:
            leave()

    @asynccontextmanager
    async def _stream(self, method: str, context: Any) -> AsyncIterator[None]:
        """Counts the block as a stream of its connection. Raises Busy beyond MAX_STREAMS_OF_ONE."""
        key = (method, context.peer())
        if self._streams[key] >= MAX_STREAMS_OF_ONE:
            raise Busy(f"{MAX_STREAMS_OF_ONE} {method} streams of this connection are open already; retry later")
        self._streams[key] += 1
        try:
            yield
        finally:
            self._streams[key] -= 1
            if not self._streams[key]:
                del self._streams[key]

    async def _followed(self, offset: int, term: int, wake: asyncio.Event) -> AsyncIterator[pb.FollowReply]:
        """Yields the entries after that position, without end. If they are no longer kept, a snapshot comes first. A change
        sets `wake`."""
        position = (offset, term)
        await self._skip_ids_unknown(offset, term)
        while True:
            wake.clear()
            await self._calls.begin()
            entries = self._metadata.recent.after(*position)
            if entries is None:
                position = self._metadata.recent.end
                for part in self._snapshot():
                    yield part
                    await self._calls.begin()
                continue
            for entry in entries:
                end, _ = self._metadata.recent.end
                yield pb.FollowReply(
                    offset=entry.offset, term=entry.term, batch=entry.payload, end=end, controller_id=self._local
                )
                await self._calls.begin()
                position = (entry.offset, entry.term)
            if not entries:
                await wake.wait()

    async def _skip_ids_unknown(self, offset: int, term: int) -> None:
        """Skips producer ids, once, if a follower has applied an entry that this log lacks, or may have (a negative `offset`):
        this controller runs on an older data directory, and its log also lacks the blocks of ids that were reserved since. A
        block reserved a second time would turn the first batch of one producer into a duplicate of another's."""
        end, _ = self._metadata.recent.end
        is_known = offset >= 0 and has_entry(self._metadata.image.terms, end, offset, term)
        if self._has_skipped_ids or is_known:
            return
        await self._controller.execute(SkipProducerIds())
        self._has_skipped_ids = True

    def _snapshot(self) -> Iterator[pb.FollowReply]:
        """The image at the time of the call, as messages. Later entries follow it."""
        offset, term = self._metadata.recent.end
        left = snapshot_parts(to_records(self._metadata.image))
        part = next(left, [])
        while True:
            following = next(left, None)
            batch = records.MetadataBatch(records=part).SerializeToString()
            end, _ = self._metadata.recent.end
            yield pb.FollowReply(
                offset=offset,
                term=term,
                batch=batch,
                snapshot=True,
                last=following is None,
                end=end,
                controller_id=self._local,
            )
            if following is None:
                return
            part = following

    def _check_cluster(self, cluster_id: str) -> None:
        """Raises WrongCluster if the broker belongs to another cluster."""
        own = self._metadata.image.cluster_id
        if cluster_id and cluster_id != own:
            raise WrongCluster(
                f"this is the controller of the cluster {own}, and the broker belongs to {cluster_id}; give the broker the "
                "address of its own controller"
            )


async def _outcome(pending: PendingAnswer | LogError, client: str) -> pb.Outcome:
    try:
        if isinstance(pending, LogError):
            raise pending
        answer = await pending
    except LogError as error:
        events.provoked(log, "request.refused", by="Execute", server="grpc", api="Execute", client=client, error=error)
        return pb.Outcome(error=detail_of(error).SerializeToString())
    return pb.Outcome(result=answer.encoded_result, offset=answer.offset)


def snapshot_parts(left: Iterable[records.MetadataRecord]) -> Iterator[list[records.MetadataRecord]]:
    """The records in lists of at most SNAPSHOT_RECORDS records and SNAPSHOT_BYTES, or of one larger record. A client may give
    hundreds of topics configs of many kilobytes, and gRPC refuses a message of more than MAX_MESSAGE_BYTES."""
    part: list[records.MetadataRecord] = []
    size = 0
    for record in left:
        added = record.ByteSize()
        if part and (len(part) >= SNAPSHOT_RECORDS or size + added > SNAPSHOT_BYTES):
            yield part
            part, size = [], 0
        part.append(record)
        size += added
    if part:
        yield part
