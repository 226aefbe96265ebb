"""A request to the store is held up until everything around it has changed, and then arrives.

The proxy holds an offload, a commit, or a deletion past the grace, while the node sweeps, expires segments, deletes the
topic and makes it again, or dies and restarts. Once the request is released, no object that a manifest names may be missing,
nothing deleted may come back, and whatever the request leaves behind is swept.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults import bucket
from tests.faults.clients import TIERED, alter_topic, delete_records, delete_topic, seal, until
from tests.faults.processes import kill_node
from tests.faults.world import HOUR_MS, SWEEPING, World, a_world
from tests.support.s3_proxy import held
from tests.support.s3_servers import S3Server

TOPIC = "stalled"
SIDECAR = ("PUT", ".idx")
SEGMENT = ("PUT", ".log")
COMMIT = ("PUT", "manifests/")
COMPLETION = ("POST", ".log?uploadId=")
DELETION = ("POST", "?delete")
#: Sweeping rounds that count as "long past the grace": one begins each second, the grace is a third of that.
SWEEPS = 3


@dataclass
class Held:
    """The next request of a kind, held until `release`."""

    world: World
    method: str
    path: str

    def __post_init__(self) -> None:
        self._released = threading.Event()
        self._before = self.world.proxy.count(self.method, self.path)
        self.world.proxy.on(1, held(self._released), method=self.method, path=self.path)

    def wait(self) -> None:
        """Returns once the request has arrived."""
        until(lambda: self.world.proxy.count(self.method, self.path) > self._before, f"{self.method} {self.path}")

    def release(self) -> None:
        self._released.set()


@pytest.fixture
def world(tmp_path: Path, versitygw: S3Server) -> Iterator[World]:
    with a_world(tmp_path, versitygw, TOPIC, settings=SWEEPING) as world:
        world.create({**TIERED, "tidelog.tier.max.lag.ms": str(HOUR_MS)})
        yield world


def sweeps_pass(world: World) -> None:
    """Returns after several sweeps, long past the grace."""
    before = world.proxy.count("GET", "list-type=2")
    until(lambda: world.proxy.count("GET", "list-type=2") >= before + 2 * SWEEPS, "sweeping goes on")


def nothing_is_missing(world: World) -> None:
    with bucket.opened(world.node.store, world.server.endpoint) as store:
        told = [each for each in bucket.findings(store) if not each.startswith(("orphan", "unfinished"))]
    # Without a manifest nothing is swept: an interrupted first offload stays until the next one has made a manifest.
    cut = f"/{0:020}-"
    damage = [each for each in told if not (each.startswith("segments without a manifest") and cut in each)]
    assert damage == []


def back_from_death(world: World) -> None:
    kill_node(world.node.pid)
    world.node.kill()
    world.node.start()


def made_again(world: World) -> None:
    delete_topic(world.node, TOPIC)
    world.create({**TIERED, "tidelog.tier.max.lag.ms": str(HOUR_MS)})
    world.begin_anew()


def only_sweeping(world: World) -> None:
    """Does nothing, so the node only takes records and sweeps while the request is held."""


SAMPLE = [
    (SEGMENT, only_sweeping, False),
    (SEGMENT, back_from_death, True),
    (COMMIT, back_from_death, False),
    (COMMIT, made_again, False),
]
ALL = itertools.product((SIDECAR, SEGMENT, COMMIT), (only_sweeping, back_from_death, made_again), (True, False))


@pytest.mark.parametrize(
    ("kind", "meanwhile", "first"),
    [*SAMPLE, *(pytest.param(*case, marks=pytest.mark.faults) for case in ALL if case not in SAMPLE)],
)
def test_an_extension_is_held_up(
    world: World, kind: tuple[str, str], meanwhile: Callable[[World], None], first: bool
) -> None:
    """With `first`, there is no manifest yet."""
    if not first:
        world.write(100)
        world.offload()
    world.write(100)
    stalled = Held(world, *kind)
    seal(world.node, TOPIC, wait=False)
    stalled.wait()
    meanwhile(world)
    world.write(100)
    if meanwhile is not only_sweeping:
        world.offload()
    sweeps_pass(world)
    nothing_is_missing(world)

    stalled.release()
    world.offload()
    nothing_is_missing(world)
    world.write(50)
    world.swept()


@pytest.mark.faults
def test_the_end_of_a_multipart_upload_is_held_up(world: World) -> None:
    alter_topic(world.node, TOPIC, {"internal.segment.bytes": str(20 << 20)})
    with world.load(sizes=range(50_000, 50_001)) as load:
        load.more(350)
        load.settle()
    stalled = Held(world, *COMPLETION)
    seal(world.node, TOPIC, wait=False)
    stalled.wait()
    back_from_death(world)
    world.offload()
    sweeps_pass(world)
    nothing_is_missing(world)
    stalled.release()
    world.write(50)
    world.swept()


@pytest.mark.parametrize("kind", [COMMIT, DELETION], ids=["commit", "deletion"])
def test_retention_is_held_up(world: World, kind: tuple[str, str]) -> None:
    """Holds the commit that expires segments, or the deletion of their objects."""
    world.write(400)
    world.offload()
    stalled = Held(world, *kind)
    alter_topic(world.node, TOPIC, {"retention.bytes": "1"})
    stalled.wait()
    back_from_death(world)
    alter_topic(world.node, TOPIC, {"retention.bytes": "-1"})
    world.write(200)
    sweeps_pass(world)
    nothing_is_missing(world)
    stalled.release()
    world.log_start_rose()
    world.swept()


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(COMMIT, id="terminal commit"),
        pytest.param(("PUT", "topic.json"), id="topic.json", marks=pytest.mark.faults),
        pytest.param(DELETION, id="sweep", marks=pytest.mark.faults),
    ],
)
def test_a_topic_deletion_is_held_up(world: World, kind: tuple[str, str]) -> None:
    world.write(100)
    world.offload()
    stalled = Held(world, *kind)
    made_again(world)
    stalled.wait()
    back_from_death(world)
    world.write(100)
    world.offload()
    sweeps_pass(world)
    nothing_is_missing(world)
    stalled.release()
    world.write(50)
    world.swept()


def test_a_raised_log_start_is_held_up(world: World) -> None:
    """DeleteRecords waits for its commit; a node that dies meanwhile still has the new log start."""
    world.write(300)
    world.offload()
    stalled = Held(world, *COMMIT)
    asking = threading.Thread(target=delete_quietly, args=(world, 100), daemon=True)
    asking.start()
    stalled.wait()
    back_from_death(world)
    asking.join()
    world.write(100)
    sweeps_pass(world)
    stalled.release()
    world.log_start_rose(100)
    world.swept()


def delete_quietly(world: World, before: int) -> None:
    """Deletes records on a node that dies before it answers."""
    try:
        delete_records(world.node, TOPIC, before)
    except Exception:  # noqa: BLE001 - whatever the client makes of a lost connection
        return
