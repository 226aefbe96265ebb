"""The controller's side of its gRPC service: registrations, heartbeats, commands, and the metadata that brokers follow.

Invariants: only a heartbeat of a broker's current registration unfences it. A call that names another cluster, or an outdated
or unknown registration, is refused and changes nothing. A connection has at most MAX_CALLS_OF_ONE requests of MAX_REQUEST_BYTES
in memory, and a follower gets its next entry once it has read the previous one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any

import grpc
import grpc.aio

from grpc_api.contract.topics import text_of
from grpc_api.limits import server_options
from grpc_api.listening import every_address
from grpc_api.servicers.errors import ending
from service.controller import controller_pb2 as pb
from service.controller.contacts import Contact, Contacts
from service.controller.controller_pb2_grpc import ControllerServicer, add_ControllerServicer_to_server
from service.metadata import records_pb2 as records
from service.metadata.command_codec import decode_command, encode_result
from service.metadata.commands import FenceBroker, RegisterBroker, ShutDownBroker, UnfenceBroker
from service.metadata.controller import CommandOrigin, Controller
from service.metadata.log import MetadataLog
from service.metadata.registrations import MAX_BROKERS, elsewhere, registration
from service.metadata.snapshot import to_records
from storage_tiers import events
from storage_tiers.clock import Clock
from storage_tiers.errors import InvalidConfig, InvalidRequest, LogError, WrongCluster

log = logging.getLogger(__name__)

#: Records of a snapshot that one message holds.
SNAPSHOT_PART = 500
#: Most concurrent calls of a connection; further ones wait in their client. There are at most MAX_BROKERS connections.
MAX_CALLS_OF_ONE = 64
#: Most bytes of one request. A topic of 10,000 partitions with assignments takes 0.1 MB.
MAX_REQUEST_BYTES = 512 << 10
#: Seconds that calls in flight have to finish when the controller stops.
STOP_S = 0.5
#: Seconds between two checks for silent brokers.
LOOK_S = 0.1


@asynccontextmanager
async def serving(service: ControllerService, host: str, port: int) -> AsyncIterator[int]:
    """Serves on that address (an empty host: every address; port 0: a free one), yields the port, and fences silent brokers
    meanwhile. Raises InvalidConfig if the address cannot be bound."""
    bounds = {
        **dict(server_options(MAX_BROKERS)),
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
    watching = asyncio.get_running_loop().create_task(service.run(), name="silent brokers")
    try:
        yield bound
    finally:
        watching.cancel()
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
            # The disk failed, or a newer start has registered. The next check tries a live registration again.
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
            origin = CommandOrigin(request.broker_id, request.broker_epoch, request.sequence, request.answered_below)
            answer = await self._controller.answer(decode_command(request.command), origin)
            return pb.ExecuteReply(result=encode_result(answer.result), offset=answer.offset)
        return pb.ExecuteReply()

    async def Heartbeat(  # noqa: N802
        self, requests: AsyncIterator[pb.HeartbeatRequest], context: Any
    ) -> AsyncIterator[pb.HeartbeatReply]:
        contact: Contact | None = None
        try:
            async with ending("Heartbeat", context):
                async for request in requests:
                    contact = self._contact(request, contact)
                    yield await self._beat(contact, request)
        finally:
            if contact is not None:
                self._contacts.ended(contact, self._clock.monotonic())

    def _contact(self, request: pb.HeartbeatRequest, known: Contact | None) -> Contact:
        """The stream's registration: its first request sets it. Raises InvalidRequest for a request of another registration."""
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
            async with ending("Follow", context):
                self._check_cluster(request.cluster_id)
                async for part in self._followed(request.offset, request.term, wake):
                    yield part
        finally:
            leave()

    async def _followed(self, offset: int, term: int, wake: asyncio.Event) -> AsyncIterator[pb.FollowReply]:
        """Yields the entries after that position without end, after a snapshot if they are no longer kept. A change sets
        `wake`."""
        position = (offset, term)
        while True:
            wake.clear()
            entries = self._metadata.recent.after(*position)
            if entries is None:
                position = self._metadata.recent.end
                for part in self._snapshot():
                    yield part
                continue
            for entry in entries:
                end, _ = self._metadata.recent.end
                yield pb.FollowReply(offset=entry.offset, term=entry.term, batch=entry.payload, end=end)
                position = (entry.offset, entry.term)
            if not entries:
                await wake.wait()

    def _snapshot(self) -> Iterator[pb.FollowReply]:
        """The image at the time of the call, as messages. Later entries follow it."""
        offset, term = self._metadata.recent.end
        left = to_records(self._metadata.image)
        part = list(islice(left, SNAPSHOT_PART))
        while True:
            following = list(islice(left, SNAPSHOT_PART))
            batch = records.MetadataBatch(records=part).SerializeToString()
            end, _ = self._metadata.recent.end
            yield pb.FollowReply(offset=offset, term=term, batch=batch, snapshot=True, last=not following, end=end)
            if not following:
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
