"""A crash between any two steps of a decided transaction: the next node ends it as it was decided, in every partition.

The crash is exact: a step is held back, and the files are copied as a kill would leave them.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from grpc_api.contract.coordinator_errors import CoordinatorNotAvailable
from grpc_api.contract.log import Appended, Isolation
from grpc_api.contract.transactions import Markers
from service.broker.coordinators.transaction_markers import TransactionMarkers
from service.broker.partition.partition import Partition
from storage_tiers.clock import SystemClock
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.errors import LogError
from storage_tiers.records.builder import ControlKind
from tests.service.broker.coordinators.transactional import SETTINGS, T0, T1, Client, led, markers_in, write
from tests.service.broker.support import Running, running, until
from tests.support.faulty_store import FaultyStore

Step = Callable[[Running, Client], Awaitable[None]]


async def crashed(directory: Path, store: FaultyStore, commit: bool, reached: Step) -> Path:
    """The files of a node that died in a transaction of two partitions once `reached` returned."""
    async with running(directory / "data", store, SETTINGS) as node:
        await node.create("t", partitions=2)
        client = await Client(node).begin()
        await client.add(T0, T1)
        for partition in (T0, T1):
            write(node, partition, client.producer)
        assert await client.end(commit=commit) is None
        await reached(node, client)
        shutil.copytree(directory / "data", directory / "crashed", copy_function=_copy)
    return directory / "crashed"


def _copy(source: str, target: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # the node has renamed its unfinished file meanwhile
        shutil.copy2(source, target)


async def ends(directory: Path, store: FaultyStore, commit: bool) -> list[int]:
    """Asserts that the transaction ends as decided; returns the numbers of markers in its partitions."""
    async with running(directory, store, SETTINGS) as node:
        await Client(node).reaches("CompleteCommit" if commit else "CompleteAbort")
        found = [await markers_in(node, partition) for partition in (T0, T1)]
        kinds = {kind for markers in found for kind, _, _ in markers}
        assert kinds == {ControlKind.COMMIT if commit else ControlKind.ABORT}
        for partition in (led(node, T0), led(node, T1)):
            stable = partition.readable_end(Isolation.READ_COMMITTED)
            assert stable == partition.readable_end(Isolation.READ_UNCOMMITTED) == partition.log.end_offset
        client = await Client(node).begin()
        await client.add(T0)
        return [len(markers) for markers in found]


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore(SystemClock()))


@pytest.mark.parametrize("commit", [True, False])
async def test_a_node_that_dies_between_two_partitions_markers_writes_them_again(
    tmp_path: Path, store: FaultyStore, monkeypatch: pytest.MonkeyPatch, commit: bool
) -> None:
    whole = Partition.append_marker

    def refuses_the_second(self: Partition, markers: Markers, epoch: int) -> Appended:
        if self.partition == T1:
            raise CoordinatorNotAvailable("not now")
        return whole(self, markers, epoch)

    async def first_is_marked(node: Running, client: Client) -> None:
        async with asyncio.timeout(60):
            while not await markers_in(node, T0):
                await asyncio.sleep(0.005)
        assert await markers_in(node, T1) == []
        assert (await client.state()).startswith("Prepare")

    with monkeypatch.context() as patched:
        patched.setattr(Partition, "append_marker", refuses_the_second)
        directory = await crashed(tmp_path, store, commit, first_is_marked)
    first, second = await ends(directory, store, commit)
    assert (first, second) == (2, 1)  # the next node cannot know which of them were written


@pytest.mark.parametrize("commit", [True, False])
async def test_a_node_that_dies_between_the_markers_and_their_completion_completes_the_transaction(
    tmp_path: Path, store: FaultyStore, monkeypatch: pytest.MonkeyPatch, commit: bool
) -> None:
    asked: list[Markers] = []

    def never(_: TransactionMarkers, host: object, markers: Markers) -> LogError:
        asked.append(markers)
        return LogError("the disk has no room")

    async def all_are_marked(node: Running, client: Client) -> None:
        await until(lambda: bool(asked))
        assert [len(await markers_in(node, partition)) for partition in (T0, T1)] == [1, 1]
        assert (await client.state()).startswith("Prepare")

    with monkeypatch.context() as patched:
        patched.setattr(TransactionMarkers, "_refused_completion", never)
        directory = await crashed(tmp_path, store, commit, all_are_marked)
    assert await ends(directory, store, commit) == [2, 2]
