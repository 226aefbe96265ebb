"""The changes of the cluster and its topics, for all callers that watch them.

One look at the topics serves every watcher: it records the version of each topic's last change. So a watcher keeps one version
number, and gets the changes after that version, at a cost that depends only on these changes. A look runs in slices, and each
turn of the loop wakes only some watchers, because there may be thousands of topics and of watchers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from grpc_api.contract.topics import ClusterDescription, TopicDescription, Topics
from grpc_api.servicers.calls import in_pieces
from grpc_api.versions import first_version
from storage_tiers.clock import Rng
from storage_tiers.errors import LogError
from storage_tiers.types import TopicId

#: Watchers woken in one turn of the loop.
WAKE_A_TURN = 8
#: Deleted topics that are remembered; a watcher that is further behind gets all topics again.
MAX_GONE = 4096


class Update(NamedTuple):
    """The changes up to `version`; `cluster` is None if it did not change. If `complete`, `topics` are all topics."""

    version: int
    cluster: ClusterDescription | None
    topics: Sequence[TopicDescription]
    gone: Sequence[TopicId]
    complete: bool


class WatchedTopics:
    """`version` counts the changes that this process has seen, from a random multiple of 2^32 on. So a client that has changed
    to another node, or whose node was restarted, can tell their versions apart (`grpc_api/versions.py`). Call it on one event
    loop."""

    def __init__(self, topics: Topics, rng: Rng) -> None:
        self._topics = topics
        self._first = self.version = first_version(rng)
        self._looked_at = self._cluster_at = self._forgotten = 0
        self._cluster: ClusterDescription | None = None
        #: Topics, and deleted ones, each with the version of its last change, in the order of these versions.
        self._known: dict[TopicId, tuple[int, TopicDescription]] = {}
        self._gone: dict[TopicId, int] = {}
        self._looking = asyncio.Lock()
        #: Watchers that wait for a change, in order of arrival.
        self._waiting: dict[asyncio.Future[None], None] = {}
        topics.subscribe(self._count)

    def _count(self) -> None:
        self.version += 1
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._wake, len(self._waiting))

    def _wake(self, left: int) -> None:
        for _ in range(min(left, WAKE_A_TURN, len(self._waiting))):
            waiter = next(iter(self._waiting))
            del self._waiting[waiter]
            if not waiter.done():
                waiter.set_result(None)
        if left > WAKE_A_TURN and self._waiting:
            asyncio.get_running_loop().call_soon(self._wake, left - WAKE_A_TURN)

    async def after(self, version: int) -> Update:
        """The changes after that version, once there are some; all topics after version 0."""
        while version >= self.version:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting[waiter] = None
            try:
                await waiter
            finally:
                self._waiting.pop(waiter, None)
        async with self._looking:
            if self._looked_at != self.version:
                await self._look(self.version)
            cluster = self._cluster if self._cluster_at > version else None
            if version < max(self._first, self._forgotten):
                return Update(
                    self._looked_at, self._cluster, [each for _, each in self._known.values()], (), complete=True
                )
            changed = takewhile(lambda known: known[0] > version, reversed(self._known.values()))
            topics = [each for _, each in changed][::-1]
            gone = takewhile(lambda known: known[1] > version, reversed(self._gone.items()))
            return Update(self._looked_at, cluster, topics, [topic_id for topic_id, _ in gone], complete=False)

    async def _look(self, version: int) -> None:
        """Records the changes up to that version, the current one. A cancelled look has recorded some of them, under a version
        that no watcher has seen yet."""
        cluster, found = self._topics.cluster(), self._topics.describe(None)
        left = dict.fromkeys(self._known)
        async for some in in_pieces(found, 1):
            for each in some:
                if isinstance(each, LogError):
                    continue
                left.pop(each.topic_id, None)
                known = self._known.get(each.topic_id)
                if known is None or known[1] != each:
                    self._known.pop(each.topic_id, None)
                    self._known[each.topic_id] = (version, each)
                    self._gone.pop(each.topic_id, None)
        for topic_id in left:
            del self._known[topic_id]
            self._gone[topic_id] = version
        while len(self._gone) > MAX_GONE:
            self._forgotten = self._gone.pop(next(iter(self._gone)))
        if cluster != self._cluster:
            self._cluster, self._cluster_at = cluster, version
        self._looked_at = version
