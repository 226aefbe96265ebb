"""A partition moves to this broker, and the bucket has lost some of its records: an operator gives up exactly these records."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from storage_tiers.clock import SystemClock
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.errors import LeaderNotAvailable
from storage_tiers.types import OffsetRange
from tests.service.broker.background.test_moving import KEY, append, back, moving, placed, with_target
from tests.service.broker.coordinators.test_groups import SETTINGS, commit, coordinated, has_offsets
from tests.service.broker.support import Running, running, until
from tests.support.faulty_store import FaultyStore


def manifest_key(store: FaultyStore) -> str:
    listed = store.store.blocking().list("")  # type: ignore[attr-defined]
    (key,) = (info.key for info in listed if "/topics/t/" in info.key and "/manifests/" in info.key)
    return str(key)


async def moved_with_loss(tmp_path: Path, store: FaultyStore, *, kept: bool) -> None:
    """Moves a partition of ten records to broker 2, and then loses its manifest. With `kept`, the partition has five more
    records, and the manifest of the first ten is put back."""
    async with running(tmp_path, store, broker=SETTINGS) as node:
        groups = await coordinated(node, "g")  # while there is no second broker
        await with_target(node)
        await node.seal("t")
        older = (await store.get(manifest_key(store))).data
        assert json.loads(older)["end"] == 10
        if kept:
            await append(node, 5)
        await commit(groups, 15 if kept else 10)
        await moving(node)
        await until(lambda: placed(node).leader == 2)
    key = manifest_key(store)
    await store.delete([key])
    if kept:
        await store.put(key, older)


def advised(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = re.findall(r"`tidelog cold repair t --accept-loss 0:(\d+)-(\d+) --apply`", caplog.text)
    return sorted({f"{base}-{end}" for base, end in found})


async def waiting(node: Running, caplog: pytest.LogCaptureFixture, end: int) -> None:
    """Moves the partition back to the node; asserts that the node waits for the lost records and logs the command to run."""
    await back(node, end)
    led = node.node.broker.partitions.get(KEY)
    await until(lambda: led.is_recovering and bool(advised(caplog)))
    with pytest.raises(LeaderNotAvailable):
        await node.append("t", b"early")


@pytest.mark.parametrize(("kept", "end"), [(0, 10), (10, 15)])
async def test_the_partition_continues_at_the_buckets_end_once_the_loss_is_accepted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kept: int, end: int
) -> None:
    store = FaultyStore(MemoryStore(SystemClock()))
    await moved_with_loss(tmp_path, store, kept=kept > 0)
    async with running(tmp_path, store, broker=SETTINGS) as node:
        await waiting(node, caplog, end)
        assert advised(caplog) == [f"{kept}-{end}"]
        lost, cold = OffsetRange(kept, end), node.core.cold
        for accepted in ([], [OffsetRange(kept, end - 1)], [lost, OffsetRange(end, end + 1)]):
            refused = (await cold.repair(KEY, apply=True, accept_loss=accepted)).refused
            assert f"--accept-loss 0:{kept}-{end} --apply" in refused
        planned = await cold.repair(KEY, apply=False, accept_loss=[lost])
        assert planned.summary == f"offsets [{kept}, {end}) will be given up; new records begin at {kept}"
        led = node.node.broker.partitions.get(KEY)
        assert led.is_recovering and placed(node).moved_end == end
        done = await cold.repair(KEY, apply=True, accept_loss=[lost])
        assert (done.refused, done.summary) == (
            "",
            f"offsets [{kept}, {end}) are given up; new records begin at {kept}",
        )
        await until(lambda: led.write_error is None)
        assert placed(node).moved_end == 0
        await has_offsets(await coordinated(node, "g"), {"t": [kept]})
        assert f"partition.loss_accepted topic=t partition=0 first_offset={kept} end_offset={end}" in caplog.text
        assert (await node.append("t", b"next")).base_offset == kept
        again = await cold.repair(KEY, apply=True, accept_loss=[lost])
        assert again.commit == 0, "the same command again gives up nothing of the records that came since"
        assert len(await node.read_all("t")) == kept + 1
    async with running(tmp_path, store, broker=SETTINGS) as node:
        led = node.node.broker.partitions.get(KEY)
        await until(lambda: led.write_error is None)
        assert len(await node.read_all("t")) == kept + 1
