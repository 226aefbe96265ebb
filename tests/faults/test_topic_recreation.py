"""A topic is deleted and created again under its name: its id and its log are new, and nothing of the first comes back."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.model import State
from storage_tiers.errors import TierObjectMissing
from tests.faults import bucket, single_requests
from tests.faults.clients import delete_records, delete_topic, seal, until
from tests.faults.world import SWEEPING, World, a_world
from tests.support.s3_proxy import held
from tests.support.s3_servers import S3Server

TOPIC = "again"


@pytest.fixture
def world(tmp_path: Path, versitygw: S3Server) -> Iterator[World]:
    with a_world(tmp_path, versitygw, TOPIC, settings=SWEEPING) as world:
        world.create()
        yield world


def made_again(world: World) -> None:
    delete_topic(world.node, TOPIC)
    world.create()
    world.begin_anew()


def states(world: World) -> list[State]:
    with bucket.opened(world.node.store, world.server.endpoint) as store:
        return sorted((manifest.state for manifest in bucket.manifests(store, TOPIC)), key=lambda state: state.value)


def topic_file(world: World) -> dict[str, object]:
    """The topic's file, or {} if there is none yet."""
    with bucket.opened(world.node.store, world.server.endpoint) as store:
        (cluster,) = store.list_folders("")
        try:
            document: dict[str, object] = json.loads(store.get(keys.topic_file_key(cluster, TOPIC)).data)
        except TierObjectMissing:
            return {}
        return document


def test_the_second_topic_has_nothing_of_the_first(world: World) -> None:
    for _ in range(3):
        world.write(300)
        world.offload()
        world.write(20)  # never offloaded
        made_again(world)
    world.write(100)
    world.judge()
    world.swept()
    assert states(world) == [State.DELETED] * 3 + [State.LIVE]
    assert topic_file(world)["state"] == "live"


def test_a_deletion_continues_after_a_death(world: World) -> None:
    world.write(300)
    world.offload()
    delete_topic(world.node, TOPIC)
    world.node.kill()
    world.node.start()
    world.create()
    world.begin_anew()
    world.node.kill()
    world.node.start()
    world.write(100)
    world.swept()
    assert states(world) == [State.DELETED, State.LIVE]


def test_positions_in_the_first_topic_do_not_apply_to_the_second(world: World) -> None:
    """The second topic inherits neither log start nor recovery point, which are in files of the whole data directory."""
    world.write(300)
    assert delete_records(world.node, TOPIC, 250) == 250
    world.node.restart()
    made_again(world)
    world.write(50)
    world.node.kill()
    world.node.start()
    world.judge()
    assert single_requests.fetch(world.node.kafka, TOPIC, 0).data


def test_a_late_first_publication_does_not_bring_the_first_topic_back(world: World) -> None:
    """The first write of a new topic's `topic.json` is held up while that topic is deleted and created again."""
    released = threading.Event()
    delete_topic(world.node, TOPIC)
    until(lambda: topic_file(world).get("state") == "deleted", "the deletion is published")
    world.proxy.on(1, held(released), method="PUT", path="topic.json")
    count = world.proxy.count("PUT", "topic.json")
    world.create()
    until(lambda: world.proxy.count("PUT", "topic.json") > count, "the publication is in progress")
    made_again(world)
    world.write(100)
    seal(world.node, TOPIC, wait=False)
    released.set()
    world.swept()
    assert topic_file(world)["state"] == "live"
    with bucket.opened(world.node.store, world.server.endpoint) as store:
        live = [manifest.ids.topic_id for manifest in bucket.manifests(store, TOPIC) if manifest.state is State.LIVE]
    assert [str(topic_id) for topic_id in live] == [topic_file(world)["topic_id"]]
