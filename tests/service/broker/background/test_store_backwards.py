"""A store whose `cluster.json` is gone, or older than what this directory wrote: the node leads, and leaves the store alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.broker.background.store_claim import settle
from service.metadata.image import MetadataImage
from service.metadata.parts import StartImage
from service.serve.rounds import rounds
from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.cluster_file import TAKE_OVER_GAP, ClusterState, Holder
from storage_tiers.errors import FencedWriter, LogError, StoreBehind
from storage_tiers.types import TopicPartition
from storage_tiers.uuids import uuid_text
from tests.service.broker.support import Running, filled, running, until

#: The workers that delete, evict or write on a timer.
ROUNDS = ("tiering", "retention", "sweeping", "topic files", "sweeping of deleted topics")
CHANGES = ("put", "delete")


def changed(node: Running, cluster: str) -> list[tuple[str, str]]:
    """The requests that changed the store, except for the probe's own key."""
    probing = f"{cluster}/probe-"
    return [call for call in node.store.calls if call[0] in CHANGES and not call[1].startswith(probing)]


@pytest.mark.parametrize("older", [True, False], ids=["older", "gone"])
async def test_partitions_lead_and_the_store_is_not_written_to_until_it_is_put_back(
    tmp_path: Path, older: bool
) -> None:
    async with running(tmp_path) as node:
        await until(lambda: node.node.ground.readiness.store == "ok")
        key = keys.cluster_key(node.node.cluster_id)
        first = (await node.store.get(key)).data
    async with running(tmp_path, node.store) as node:
        await filled(node, 20)
        await node.seal("t")
        newest = (await node.store.get(key)).data
    if older:
        await node.store.put(key, first)
    else:
        await node.store.delete([key])
    node.store.calls.clear()

    async with running(tmp_path, node.store, {"tidelog.tier.delete.grace.ms": "1000"}) as node:
        behind = node.tier.access
        assert behind is not None
        await until(lambda: behind.behind is not None)
        assert "went backwards" in json.loads(node.node.ground.readiness.body())["store"]
        hot = node.node.broker.partitions.get(TopicPartition("t", 0)).log.hot
        await node.append("t", b"x" * 1500)
        await node.append("t", b"y" * 1500)
        assert [record.value for record in await node.read_all("t", start=20)] == [b"x" * 1500, b"y" * 1500]
        local = hot.local_start_offset
        for worker in rounds(node.node):
            if worker.name in ROUNDS:
                await worker.tick()
        assert hot.local_start_offset == local
        assert changed(node, node.node.cluster_id) == []

        await node.store.put(key, newest)
        await until(lambda: behind.writer is not None)
        assert behind.behind is None
        await node.seal("t")


@pytest.mark.parametrize(
    ("number", "start", "error"),
    [
        (3, b"mine", None),
        (4, b"unanswered", None),
        (3, b"another", FencedWriter),
        (4, b"another", FencedWriter),
        (5, b"mine", FencedWriter),
        (2, b"mine", StoreBehind),
        (None, b"", StoreBehind),
    ],
)
def test_the_states_that_cluster_json_may_show(number: int | None, start: bytes, error: type[LogError] | None) -> None:
    image = MetadataImage(
        cluster_id="c",
        incarnation=3,
        start_id=b"mine",
        unconfirmed_starts=(StartImage(1, 4, b"unanswered"),),
    )
    found = None if number is None else ClusterState("c", number, Holder(1, "d", uuid_text(start)))
    if error is None:
        assert settle(found, image, "d") == number
    else:
        with pytest.raises(error):
            settle(found, image, "d")


@pytest.mark.parametrize(
    ("held", "number", "error"),
    [
        (4, 3, FencedWriter),
        (TAKE_OVER_GAP + 5, TAKE_OVER_GAP + 2, FencedWriter),
        (TAKE_OVER_GAP + 5, 6, FencedWriter),
        (TAKE_OVER_GAP + 5, 5, StoreBehind),  # the state before this directory's own take-over
        (TAKE_OVER_GAP + 5, 1, StoreBehind),
    ],
)
def test_a_lower_incarnation_of_another_directory_is_a_take_over(held: int, number: int, error: type[LogError]) -> None:
    image = MetadataImage(cluster_id="c", incarnation=held, start_id=b"mine")
    found = ClusterState("c", number, Holder(1, "other", uuid_text(b"another")))
    with pytest.raises(error):
        settle(found, image, "d")


def test_a_new_directory_begins_with_a_store_that_has_nothing() -> None:
    assert settle(None, MetadataImage(cluster_id="c"), "d") == 0
