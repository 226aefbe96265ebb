"""A broker that has applied newer metadata does not start on an older controller."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from service.controller.applied_metadata import FILE_NAME, AppliedEntry, AppliedMetadata, read_position
from service.controller.membership import ClusterMembership
from service.metadata.commands import AllocateProducerIds, ProducerIdBlock, SkipProducerIds
from storage_tiers.clock import SystemClock
from storage_tiers.errors import FencedWriter
from storage_tiers.files import OsFiles
from tests.service.broker.support import until
from tests.service.controller.support import CLUSTER, Controlling, controlling
from tests.support.clock import SeededRng


@asynccontextmanager
async def joined(
    controller: Controlling, directory: Path, cluster_id: str = CLUSTER
) -> AsyncIterator[ClusterMembership]:
    directory.mkdir(exist_ok=True)
    member = ClusterMembership(
        controller.address, 1, cluster_id, str(directory), files=OsFiles(), clock=SystemClock(), rng=SeededRng(1)
    )
    try:
        await member.joined()
        yield member
    finally:
        await member.close()


async def grown(controller: Controlling, entries: int) -> None:
    for _ in range(entries):
        await controller.controller.execute(SkipProducerIds())


async def test_a_start_on_an_older_controller_ends_and_on_the_newest_one_continues(tmp_path: Path) -> None:
    broker = tmp_path / "broker"
    async with controlling(tmp_path / "newest") as controller:
        await grown(controller, 3)
    shutil.copytree(tmp_path / "newest", tmp_path / "older")
    async with controlling(tmp_path / "newest") as controller:
        await grown(controller, 2)
        async with joined(controller, broker) as member:
            assert member.applied.is_due
            member.applied.noting()()
            assert not member.applied.is_due
    known = read_position(str(broker))
    assert known is not None
    assert known.offset == controller.metadata.last_index
    for entries in (0, 1, 9):  # with more entries of its own, the older controller passes the offset
        async with controlling(tmp_path / "older") as controller:
            await grown(controller, entries)
            with pytest.raises(FencedWriter, match="Start the controller with its newest data directory"):
                async with joined(controller, broker):
                    pytest.fail("it has joined")
    assert read_position(str(broker)) == known
    async with controlling(tmp_path / "newest") as controller, joined(controller, broker) as member:
        member.applied.noting()()
        assert read_position(str(broker)) == AppliedEntry(known.origin, *controller.metadata.recent.end)


async def test_a_cluster_that_was_taken_over_is_joined(tmp_path: Path) -> None:
    """The cluster's new controller has a new metadata log."""
    async with controlling(tmp_path / "lost") as controller, joined(controller, tmp_path / "broker") as member:
        await grown(controller, 3)
        await member.metadata.reach(controller.metadata.last_index, 10)
        member.applied.noting()()
    async with controlling(tmp_path / "taken over") as controller, joined(controller, tmp_path / "broker") as member:
        member.applied.noting()()
        assert read_position(str(tmp_path / "broker")) == AppliedEntry(
            controller.metadata.image.terms[0].term, controller.metadata.last_index, controller.metadata.term
        )


async def test_older_metadata_of_a_running_broker_are_not_noted(tmp_path: Path) -> None:
    broker = tmp_path / "broker"
    async with controlling(tmp_path / "older"):
        pass
    shutil.copytree(tmp_path / "older", tmp_path / "newest")
    async with controlling(tmp_path / "newest") as controller, joined(controller, broker) as member:
        member.applied.noting()()
        known = read_position(str(broker))
    async with controlling(tmp_path / "older") as controller:
        (broker / FILE_NAME).rename(broker / "kept")
        async with joined(controller, broker) as member:
            (broker / "kept").rename(broker / FILE_NAME)
            applied = AppliedMetadata(str(broker), OsFiles(), member.metadata, controller.address)
            assert not applied.is_due
            applied.noting()()
    assert read_position(str(broker)) == known


async def test_an_older_controller_skips_the_producer_ids_that_were_issued_since(tmp_path: Path) -> None:
    """A second producer with an id that a running broker's logs know would have its first batch taken for a duplicate."""
    async with controlling(tmp_path / "newest"):
        pass
    shutil.copytree(tmp_path / "newest", tmp_path / "older")
    async with AsyncExitStack() as stack:
        async with controlling(tmp_path / "newest") as newest:
            member = await stack.enter_async_context(joined(newest, tmp_path / "broker", cluster_id=""))
            block: ProducerIdBlock = await newest.controller.execute(AllocateProducerIds(1))
            await member.metadata.reach(newest.metadata.last_index, 10)
        async with controlling(tmp_path / "older", newest.port) as older:
            assert older.metadata.image.next_producer_id == block.first
            await until(lambda: member.metadata.is_ahead)
            given: ProducerIdBlock = await older.controller.execute(AllocateProducerIds(1))
            assert given.first >= block.first + block.size
        async with controlling(tmp_path / "newest", newest.port) as again:  # its log has what the broker has applied
            end = again.metadata.last_index
            late = await stack.enter_async_context(joined(again, tmp_path / "late", cluster_id=""))
            assert late.metadata.applied == again.metadata.applied
            assert again.metadata.last_index == end


async def test_a_broker_that_does_not_know_its_position_gets_no_producer_id_twice(tmp_path: Path) -> None:
    """The operator has removed the note, to continue with an older controller."""
    broker = tmp_path / "broker"
    async with controlling(tmp_path / "newest"):
        pass
    shutil.copytree(tmp_path / "newest", tmp_path / "older")
    async with controlling(tmp_path / "newest") as newest, joined(newest, broker, cluster_id=""):
        block: ProducerIdBlock = await newest.controller.execute(AllocateProducerIds(1))
    async with controlling(tmp_path / "older") as older:
        assert older.metadata.image.next_producer_id == block.first
        for _ in range(2):
            async with joined(older, broker) as member:
                given: ProducerIdBlock = await older.controller.execute(AllocateProducerIds(1))
                assert given.first >= block.first + block.size
                await member.metadata.reach(older.metadata.last_index, 10)
                end = older.metadata.last_index
                member.applied.noting()()
        async with joined(older, broker) as member:
            assert member.metadata.last_index == end, "ids are skipped once"


@pytest.mark.parametrize("content", ["", "{}", "[]", "null", json.dumps({"origin": 1, "offset": "x", "term": 1})])
def test_an_unreadable_position_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE_NAME).write_text(content)
    assert read_position(str(tmp_path)) is None
