"""A wrapper that makes any object store fail, lose answers or hang at chosen calls.

    store = FaultyStore(MemoryStore(clock))
    store.fail(2, "put")                      # the second put from now raises and has no effect
    store.lose_answer(1, "put", "manifests/") # the next put of such a key takes effect, then raises
    gate = store.hold(1, "delete")            # the next delete waits before its effect: await gate.reached; gate.open()
    store.down = True                         # every call raises TierUnavailable

Each rule counts the calls made since its installation whose operation is its own (any, if empty) and whose key contains
its text. `store.calls` holds every call made as (operation, key), in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from storage_tiers.cold.stores.port import FileBody, ObjectBody, ObjectInfo, ObjectStore, Sink, UnfinishedUpload
from storage_tiers.errors import TierUnavailable


class Gate:
    """Holds a call. `reached` is set once the call waits here; it continues after `open`."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._opened = asyncio.Event()

    def open(self) -> None:
        self._opened.set()

    async def pass_through(self) -> None:
        self.reached.set()
        await self._opened.wait()


@dataclass
class _Rule:
    calls_left: int
    operation: str
    key_part: str
    after: bool
    error: Exception | None = None
    gate: Gate | None = None

    def meets(self, operation: str, key: str) -> bool:
        """Counts one call; true for the call that the rule applies to."""
        if self.operation not in ("", operation) or self.key_part not in key:
            return False
        self.calls_left -= 1
        return self.calls_left == 0

    async def act(self) -> None:
        if self.gate is not None:
            await self.gate.pass_through()
        if self.error is not None:
            raise self.error


@dataclass
class FaultyStore:
    store: ObjectStore
    down: bool = False
    calls: list[tuple[str, str]] = field(default_factory=list)
    _rules: list[_Rule] = field(default_factory=list)

    def fail(self, call: int, operation: str = "", key_part: str = "", error: Exception | None = None) -> None:
        self._rules.append(_Rule(call, operation, key_part, False, error or TierUnavailable("the store is away")))

    def lose_answer(self, call: int, operation: str = "", key_part: str = "", error: Exception | None = None) -> None:
        self._rules.append(_Rule(call, operation, key_part, True, error or TierUnavailable("the answer was lost")))

    def hold(self, call: int, operation: str = "", key_part: str = "", *, after: bool = False) -> Gate:
        gate = Gate()
        self._rules.append(_Rule(call, operation, key_part, after, gate=gate))
        return gate

    def count(self, operation: str, key_part: str = "") -> int:
        return sum(name == operation and key_part in key for name, key in self.calls)

    async def put(
        self, key: str, body: bytes | FileBody, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        after = await self._enter("put", key)
        info = await self.store.put(key, body, if_absent=if_absent, if_match=if_match)
        await _act(after)
        return info

    async def get(self, key: str, start: int = 0, length: int | None = None) -> ObjectBody:
        after = await self._enter("get", key)
        body = await self.store.get(key, start, length)
        await _act(after)
        return body

    async def get_into(self, key: str, start: int, length: int, sink: Sink) -> None:
        after = await self._enter("get", key)
        await self.store.get_into(key, start, length, sink)
        await _act(after)

    async def head(self, key: str) -> ObjectInfo:
        after = await self._enter("head", key)
        info = await self.store.head(key)
        await _act(after)
        return info

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        after = await self._enter("list", prefix)
        async for info in self.store.list(prefix, start_after=start_after):
            yield info
        await _act(after)

    async def list_folders(self, prefix: str) -> Sequence[str]:
        after = await self._enter("list", prefix)
        folders = await self.store.list_folders(prefix)
        await _act(after)
        return folders

    async def delete(self, keys: Sequence[str]) -> None:
        after = await self._enter("delete", " ".join(keys))
        await self.store.delete(keys)
        await _act(after)

    async def unfinished_uploads(self, prefix: str) -> AsyncIterator[UnfinishedUpload]:
        after = await self._enter("unfinished_uploads", prefix)
        async for upload in self.store.unfinished_uploads(prefix):
            yield upload
        await _act(after)

    async def abort_upload(self, upload: UnfinishedUpload) -> None:
        after = await self._enter("abort_upload", upload.key)
        await self.store.abort_upload(upload)
        await _act(after)

    async def close(self) -> None:
        await self.store.close()

    async def _enter(self, operation: str, key: str) -> Sequence[_Rule]:
        """Records the call, applies the rules that act before its effect, and returns those that act after it."""
        self.calls.append((operation, key))
        if self.down:
            raise TierUnavailable("the store is down")
        met = [rule for rule in self._rules if rule.meets(operation, key)]
        await _act([rule for rule in met if not rule.after])
        return [rule for rule in met if rule.after]


async def _act(rules: Sequence[_Rule]) -> None:
    for rule in rules:
        await rule.act()
