"""The contract's `Log` over the leaders of a cluster: a request is split by leader, and the answers are merged.

Invariants: answers are in the order of the request, and only a partition's leader gets requests for it. If a leader cannot be
reached, only its own partitions are answered with an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from grpc_api.contract.log import Append, Appended, Fetch, Fetched, OffsetQuery, SealedPartition
from grpc_api.contract.ready import Ready, settled
from grpc_api.contract.transactions import ProducerTransaction
from grpc_api.remote_log import RemoteLog
from grpc_api.routes import PerNode, Routes, grouped
from storage_tiers.errors import LogError
from storage_tiers.types import NO_EPOCH, TimestampOffset, TopicId, TopicPartition


class RoutedLog:
    """`topic_name` finds a topic's name by its id."""

    def __init__(self, routes: Routes, topic_name: Callable[[TopicId], str | None]) -> None:
        self._routes = routes
        self._nodes = PerNode(lambda node: RemoteLog(node, topic_name))
        self._topic_name = topic_name

    async def close(self) -> None:
        for node in self._nodes.all():
            await node.close()

    def _at(self, partition: TopicPartition) -> RemoteLog:
        return self._nodes.at(self._routes.leader(partition))

    @property
    def _home(self) -> RemoteLog:
        return self._nodes.at(self._routes.home)

    def append(
        self, appends: Sequence[Append], *, transaction: ProducerTransaction | None = None
    ) -> Ready[Sequence[Appended | LogError]]:
        groups = grouped(appends, lambda each: self._at(each.partition))
        if len(groups) < 2:
            at = self._at(appends[0].partition) if appends else self._home
            return at.append(appends, transaction=transaction)
        asked = [
            self._at(appends[group[0]].partition).append([appends[each] for each in group], transaction=transaction)
            for group in groups
        ]
        return asyncio.ensure_future(_together(groups, asked, len(appends)))

    def fetch(self, fetch: Fetch) -> Ready[Sequence[Fetched]]:
        groups = grouped(fetch.partitions, lambda each: self._at(each.partition))
        if len(groups) < 2:
            at = self._at(fetch.partitions[0].partition) if fetch.partitions else self._home
            return at.fetch(fetch)
        return asyncio.ensure_future(self._fetched(fetch, groups))

    async def _fetched(self, fetch: Fetch, groups: Sequence[Sequence[int]]) -> Sequence[Fetched]:
        """Reads from all leaders. If they have too few bytes, waits until one of them has more, and reads again."""
        loop = asyncio.get_running_loop()
        until = loop.time() + fetch.max_wait_ms / 1000
        while True:
            answers = await self._look(fetch, groups)
            left_ms = round((until - loop.time()) * 1000)
            size = sum(each.size for each in answers)
            if size >= fetch.min_bytes or left_ms <= 0 or any(each.error for each in answers):
                return answers
            for each in answers:
                each.release_all()
            await self._wait(fetch, groups, size, left_ms)

    async def _look(self, fetch: Fetch, groups: Sequence[Sequence[int]]) -> Sequence[Fetched]:
        """Reads from one leader after the other until `max_bytes` are reached."""
        answers: list[Any] = [None] * len(fetch.partitions)
        left = fetch.max_bytes
        for group in groups:
            some = [fetch.partitions[each] for each in group]
            asked = fetch._replace(partitions=some, max_wait_ms=0, max_bytes=max(left, 1))
            try:
                found = await settled(self._at(some[0].partition).fetch(asked))
            except LogError as error:
                found = [Fetched(error)] * len(group)
            for each, answer in zip(group, found, strict=True):
                if left <= 0:  # a leader returns at least one batch, and the earlier ones have returned enough
                    answer.release_all()
                    answer = answer._replace(slices=())
                answers[each] = answer
            left -= sum(each.size for each in found) if left > 0 else 0
        return answers

    async def _wait(self, fetch: Fetch, groups: Sequence[Sequence[int]], size: int, left_ms: int) -> None:
        """Returns once a leader has more than `size` bytes, or the time is up."""
        asks = []
        for group in groups:
            some = [fetch.partitions[each] for each in group]
            asked = fetch._replace(partitions=some, max_wait_ms=left_ms, min_bytes=size + 1)
            asks.append(asyncio.ensure_future(settled(self._at(some[0].partition).fetch(asked))))
        try:
            await asyncio.wait(asks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for ask in asks:
                ask.cancel()
            for done in await asyncio.gather(*asks, return_exceptions=True):
                for answer in done if not isinstance(done, BaseException) else ():
                    answer.release_all()

    async def list_offsets(self, queries: Sequence[OffsetQuery]) -> Sequence[TimestampOffset | LogError | None]:
        groups = grouped(queries, lambda each: self._at(each.partition))
        if len(groups) < 2:
            at = self._at(queries[0].partition) if queries else self._home
            return await at.list_offsets(queries)
        asked = [
            asyncio.ensure_future(self._at(queries[group[0]].partition).list_offsets([queries[each] for each in group]))
            for group in groups
        ]
        answers: Sequence[TimestampOffset | LogError | None] = await _together(groups, asked, len(queries))
        return answers

    async def delete_records(self, partition: TopicPartition, before_offset: int) -> int:
        return await self._at(partition).delete_records(partition, before_offset)

    async def epoch_end_offset(
        self, partition: TopicPartition, leader_epoch: int, current_leader_epoch: int = NO_EPOCH
    ) -> tuple[int, int]:
        return await self._at(partition).epoch_end_offset(partition, leader_epoch, current_leader_epoch)

    def topic_name(self, topic_id: TopicId) -> str | None:
        return self._topic_name(topic_id)

    async def init_producer_id(self) -> tuple[int, int]:
        return await self._home.init_producer_id()

    async def seal(self, topic: str, *, wait: bool, timeout_ms: int) -> Sequence[SealedPartition]:
        """Each broker seals the partitions that it leads. If one cannot be reached, its error is raised once all others have
        answered: a caller that then closes its connections does not end their seals."""
        asked = [
            self._nodes.at(node).seal(topic, wait=wait, timeout_ms=timeout_ms) for node in self._routes.everywhere()
        ]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return sorted(each for sealed in answers if not isinstance(sealed, BaseException) for each in sealed)


async def _together(groups: Sequence[Sequence[int]], asked: Sequence[Any], count: int) -> Any:
    """The answers to all groups in the order of the request. The error of a group is repeated for each of its rows."""
    answers: list[Any] = [None] * count
    for group, ask in zip(groups, asked, strict=True):
        try:
            found = await settled(ask)
        except LogError as error:
            found = [error] * len(group)
        for each, answer in zip(group, found, strict=True):
            answers[each] = answer
    return answers
