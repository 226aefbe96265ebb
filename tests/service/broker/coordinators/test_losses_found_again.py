"""A settled loss of records stays settled: the checkpoints of a node that is killed are up to a minute old."""

from __future__ import annotations

import shutil
from pathlib import Path

from storage_tiers.hot.checkpoints import CLEAN_SHUTDOWN, HIGH_WATERMARKS, RECOVERY_POINTS
from tests.service.broker.coordinators.test_transactions_restored import STATE, transaction
from tests.service.broker.coordinators.transactional import SETTINGS, T0, Client, led
from tests.service.broker.support import running, until


async def test_a_loss_that_is_settled_is_not_found_again_after_a_kill(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with running(data, broker=SETTINGS, store_url="none") as node:
        await node.create("t")
        await transaction(node, await Client(node).begin(), T0)
    shutil.copytree(data / STATE, tmp_path / "copy")
    async with running(data, broker=SETTINGS, store_url="none") as node:
        client = await Client(node).begin()
        for _ in range(5):
            await transaction(node, client, T0)
    shutil.rmtree(data / STATE)
    shutil.copytree(tmp_path / "copy", data / STATE)
    (data / CLEAN_SHUTDOWN).unlink()
    async with running(data, broker=SETTINGS, store_url="none") as node:
        client = await Client(node).begin()
        await until(lambda: all(each.recovered_end is None for each in node.node.broker.partitions))
        checkpoints = {name: (data / name).read_bytes() for name in (HIGH_WATERMARKS, RECOVERY_POINTS)}
        await transaction(node, client, T0)
    for name, content in checkpoints.items():  # as after kill -9
        (data / name).write_bytes(content)
    (data / CLEAN_SHUTDOWN).unlink()
    async with running(data, broker=SETTINGS, store_url="none") as node:
        after = Client(node)
        after.producer = client.producer
        await until(lambda: not led(node, T0).is_recovering)
        await after.reaches("CompleteCommit")
        await transaction(node, after, T0)
