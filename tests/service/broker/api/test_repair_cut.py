"""A node that dies in the middle of a repair: its next start and the next repair find every record exactly once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from storage_tiers.cold.manifest.model import RECENT_COMMITS, CommitId
from storage_tiers.errors import LogError, StoreBehind
from tests.service.broker.background.test_store_lineage import AT_ONCE, T0, grown, led, put_back
from tests.service.broker.support import Running, manifest_of, running, until

#: The numbers of the store requests that a repair of this partition makes before and after its commit.
CUTS = range(1, 15)


async def cut_repair(node: Running, cut: int, *, lost_answer: bool) -> bool:
    """Repairs with the store failing from request number `cut` on. Returns whether the failure hit the repair."""
    (node.store.lose_answer if lost_answer else node.store.fail)(cut)
    try:
        await node.core.cold.repair(T0, apply=True)
    except LogError:
        node.store.down = True
        return True
    return False


@pytest.mark.parametrize("lost_answer", [False, True], ids=["not made", "answer lost"])
async def test_a_repair_that_a_node_died_in_is_made_whole_after_its_restart(tmp_path: Path, lost_answer: bool) -> None:
    struck = 0
    for cut in CUTS:
        directory = tmp_path / str(cut)
        async with grown(directory) as (node, _):
            end = led(node).log.hot.end_offset
            await put_back(node, led(node).ids.manifest_key, None)
            cut_short = await cut_repair(node, cut, lost_answer=lost_answer)
        struck += cut_short
        node.store.down = False
        async with running(directory, node.store, AT_ONCE) as node:
            await is_made_whole(node, end)
    assert struck > len(CUTS) / 2, "other requests to the store may hit the injected failure"


async def test_after_a_repair_a_manifest_without_the_one_seen_is_ignored(tmp_path: Path) -> None:
    """Only the manifest that a repair commits may start a new history: each later manifest must follow from it."""
    async with grown(tmp_path) as (node, _):
        await put_back(node, led(node).ids.manifest_key, None)
        assert (await node.core.cold.repair(T0, apply=True)).commit
        manifest = await manifest_of(led(node))
        others = tuple(CommitId(number, f"{number:032x}") for number in range(1, manifest.commit + 2))
        stray = replace(manifest, commit=manifest.commit + 1, recent=others[-RECENT_COMMITS:])
        with pytest.raises(StoreBehind, match="does not follow from what was seen"):
            await node.node.work.tiering.accept(led(node), stray)
        assert (await manifest_of(led(node))) == manifest


async def is_made_whole(node: Running, end: int) -> None:
    lineage = node.node.work.tiering.lineage
    await until(lambda: node.node.work.tiering.has_compared(led(node)) or led(node) in lineage)
    assert [record.offset for record in await node.read_all("t")] == list(range(end))
    done = await node.core.cold.repair(T0, apply=True)
    assert done.refused == ""
    await until(lambda: led(node) not in lineage)
    await node.append("t", b"z" * 1500)
    await node.seal("t")
    await until(lambda: led(node).log.tiered_end == end + 1)
    assert [record.offset for record in await node.read_all("t")] == list(range(end + 1))
