"""The metadata that a broker follows: its controller's entries, applied in order.

Invariants: the image is the state after an entry of the controller's log, and never goes back. A controller whose log lacks
this broker's entry (the controller's disk is an older copy) sends a snapshot, which the broker refuses: it would set aside logs
that have moved to it since. Listeners get each change once. After a broken connection the follower asks again with back-off, or
once the connection is back, and keeps the image meanwhile.

Not thread-safe: call it on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import grpc.aio

from grpc_api.channel import NodeChannel
from grpc_api.messages.errors import error_of_call
from service.controller import controller_pb2 as pb
from service.controller.controller_pb2_grpc import ControllerStub
from service.controller.reconnection import Reconnection
from service.metadata import records_pb2 as records
from service.metadata.following import Listener
from service.metadata.history import has_entry
from service.metadata.image import MetadataImage
from service.metadata.parts import Changes
from storage_tiers import events
from storage_tiers.backoff import Backoff, BackoffSettings
from storage_tiers.errors import Advice, LogError, RequestTimedOut, UnsupportedVersion

log = logging.getLogger(__name__)

Key = TypeVar("Key")

#: The offset of a request whose broker may have applied entries, and does not know which.
UNNOTED = -1
#: Seconds until a controller with older metadata is asked again; each time it sends a snapshot.
AHEAD_S = 2.0
RECONNECTING = BackoffSettings(first=0.05, longest=1.0)


class MetadataFollower:
    """`run` follows until it is cancelled. `image`, `term`, `last_index` and `subscribe` are as in `MetadataLog`."""

    #: Always 0: a follower writes nothing.
    refused = 0

    def __init__(
        self, controller: NodeChannel, cluster_id: str = "", path: str = "", *, is_unnoted: bool = False
    ) -> None:
        """`cluster_id` is empty if it is not known; `path` is a file of the broker's directory (`Metadata.path`). `is_unnoted`:
        the directory has a broker's data, but no note of the metadata that the broker has applied."""
        self._controller = controller
        self._reconnection = Reconnection(controller.channel)
        self._cluster_id = cluster_id
        self.path = path
        self._image = MetadataImage()
        self._index = self._term = 0
        self._is_unnoted = is_unnoted
        self.controller_id: int | None = -1
        #: The newest index that the controller had when it first answered; -1 before its first answer.
        self._first_end = -1
        self._listeners: list[Listener] = []
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._snapshot: list[records.MetadataRecord] = []
        #: Whether the controller has shown metadata that lack the entry of `image`, and no later entry since. A start of a node
        #: with a controller always writes one.
        self.is_ahead = False
        self._troubles = events.Troubles()
        self._unreachable = ""

    @property
    def trouble(self) -> str | None:
        """Why the image may be out of date: the controller cannot be reached, or has older metadata. None while it is followed,
        and before the first attempt has ended."""
        if self.is_ahead:
            return f"the controller's metadata lacks entry {self._index}, which this broker has applied"
        return self._unreachable or None

    @property
    def image(self) -> MetadataImage:
        return self._image

    @property
    def term(self) -> int:
        """The term of the last entry applied."""
        return self._term

    @property
    def applied(self) -> tuple[int, int]:
        return self._index, self._term

    @property
    def last_index(self) -> int:
        """The index of the last entry applied; 0 before the first."""
        return self._index

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        self._listeners.append(listener)
        return partial(self._listeners.remove, listener)

    async def reach(self, offset: int, timeout_s: float | None) -> None:
        """Returns once the image has the entry of that index. Raises RequestTimedOut after `timeout_s` seconds; None means no
        limit."""
        if self._index >= offset:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append((offset, waiter))
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            raise RequestTimedOut(
                f"the change is made, but has not reached this broker within {timeout_s} s: its metadata is at "
                f"offset {self._index}, the change is at {offset}; retry to see it"
            ) from None
        finally:
            self._waiting = [each for each in self._waiting if each[1] is not waiter]

    async def catch_up(self) -> None:
        """Returns once the image has every entry that the controller had when it first answered, however long that takes."""
        while self._first_end < 0 or self._index < self._first_end:
            await self.reach(max(self._index + 1, self._first_end), None)

    async def run(self) -> None:
        """Follows until it is cancelled. Raises an error that must end the broker: MetadataCorrupt if a record does not match
        the image, WrongCluster, or UnsupportedVersion if the address is not a controller's listener."""
        backoff = Backoff(RECONNECTING, self._controller.rng)
        while True:
            before = self._index
            try:
                await self._follow()
            except LogError as error:
                if error.advice in (Advice.FIX, Advice.STOP, Advice.PAGE):
                    raise
                self._unreachable = str(error)
                if self._troubles.begins("controller", error):
                    events.warning(log, "controller.unreachable", address=self._controller.address, error=error)
            if self._index > before:
                backoff.succeeded()
            if self.is_ahead:
                await asyncio.sleep(AHEAD_S)
            else:
                await self._reconnection.pause(backoff.next_delay())

    async def close(self) -> None:
        """Does nothing: the caller of `run` ends its task."""

    async def _follow(self) -> None:
        """Follows until the stream ends. Raises the LogError that ended it."""
        stub = ControllerStub(self._controller.channel)
        self._snapshot.clear()
        offset = UNNOTED if self._is_unnoted and not self._index else self._index
        request = pb.FollowRequest(cluster_id=self._cluster_id, offset=offset, term=self._term)
        following = stub.Follow(request)
        try:
            async for reply in following:
                self._unreachable = ""
                if self._troubles.ends("controller"):
                    events.info(log, "controller.reached", address=self._controller.address)
                self._take(reply)
                if self.is_ahead:
                    return
        except grpc.aio.AioRpcError as failure:
            if failure.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise UnsupportedVersion(
                    f"{self._controller.address} is not a controller's listener; give the controller_listener of the "
                    "controller's node as --controller"
                ) from None
            raise error_of_call(failure, self._controller.address) from None
        finally:
            following.cancel()  # a stream that is left open counts against this connection's at the controller

    def _take(self, reply: pb.FollowReply) -> None:
        if self._first_end < 0:
            self._first_end = reply.end
        batch = records.MetadataBatch.FromString(reply.batch).records
        if not reply.snapshot:
            image = self._image.apply_batch(batch)
            self._advance(image, image.changes, reply)
            return
        self._snapshot.extend(batch)
        if reply.last:
            image = MetadataImage().apply_batch(self._snapshot)
            self._snapshot.clear()
            self.is_ahead = self._is_newer_than(image, reply.offset)
            if self.is_ahead:
                if self._troubles.begins("history", RequestTimedOut("older metadata")):
                    events.error(log, "controller.went_back", known=self._index, shown=reply.offset)
                return
            self._advance(image, changes_between(self._image, image), reply)

    def _is_newer_than(self, image: MetadataImage, offset: int) -> bool:
        """Whether `image`, of the controller's entry at `offset`, is of the same log as this broker's image and lacks its
        entry. A cluster that was taken over has another log."""
        terms, known = image.terms, self._image.terms
        if not terms or not known or terms[0] != known[0]:
            return False
        return not has_entry(terms, offset, self._index, self._term)

    def _advance(self, image: MetadataImage, changes: Changes, reply: pb.FollowReply) -> None:
        self.is_ahead = False
        self._troubles.ends("history")
        self._image, self._index, self._term = image, reply.offset, reply.term
        self.controller_id = reply.controller_id
        self._cluster_id = image.cluster_id
        for listener in tuple(self._listeners):
            listener(image, changes)
        for offset, waiter in self._waiting:
            if offset <= self._index and not waiter.done():
                waiter.set_result(None)


def changes_between(before: MetadataImage, after: MetadataImage) -> Changes:
    """The topics, configs and brokers that differ between two images."""
    topics = _differing(before.topics, after.topics)
    gone = _differing(before.deleting, after.deleting)
    return Changes(
        tuple(dict.fromkeys((*topics, *gone))),
        tuple(_differing(before.configs, after.configs)),
        tuple(_differing(before.brokers, after.brokers)),
    )


def _differing(before: Mapping[Key, object], after: Mapping[Key, object]) -> list[Key]:
    keys = dict.fromkeys((*before, *after))
    return [key for key in keys if before.get(key) != after.get(key)]
