"""I9: where the local log and the bucket disagree, the bucket wins.

While the node is stopped, its partition directory is lost, in part or whole, or an older copy of it is restored. The node
must not lead on what is left: it waits for the bucket, discards what disagrees, and resumes at the manifest's end with the
producers that the newest sidecar knows, so that no record is lost, repeated, or given another's offset.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults import single_requests
from tests.faults.clients import until
from tests.faults.world import World, a_world
from tests.support.s3_proxy import answer, hang_up_before
from tests.support.s3_servers import S3Server

TOPIC = "wins"
FIRST = 200


@pytest.fixture
def world(tmp_path: Path, versitygw: S3Server) -> Iterator[World]:
    with a_world(tmp_path, versitygw, TOPIC) as world:
        world.create()
        yield world


def remove(directory: Path, *patterns: str) -> None:
    for pattern in patterns:
        for path in directory.glob(pattern):
            path.unlink()


def whole_directory(directory: Path) -> None:
    shutil.rmtree(directory)


def every_file(directory: Path) -> None:
    remove(directory, "*")


def segments(directory: Path) -> None:
    remove(directory, "0*")


def manifest_and_segments(directory: Path) -> None:
    remove(directory, "0*", "tiered-manifest.json")


LOSSES = [whole_directory, every_file, segments, manifest_and_segments]


@pytest.mark.parametrize(
    ("loss", "clean_stop"),
    [
        (whole_directory, True),
        (segments, False),
        *(pytest.param(loss, clean, marks=pytest.mark.faults) for loss in LOSSES for clean in (True, False)),
    ],
)
def test_a_lost_log_continues_at_the_end_of_the_manifest(
    world: World, loss: Callable[[Path], None], clean_stop: bool
) -> None:
    with world.load() as load:
        load.more(FIRST)
        load.settle()
        world.offload()
        if clean_stop:
            world.node.stop()
        else:
            world.node.kill()
        loss(world.node.partition_dir(TOPIC))
        load.more(FIRST)  # the same producer, whose sequence numbers continue
        world.node.start()
        load.settle()
    world.judge()
    world.sound()


def test_sequences_sent_before_the_loss_are_known_afterwards(world: World) -> None:
    """A producer that missed all answers sends its batches again: it gets the same answers, and there is one copy of each."""
    node = world.node
    batches = [single_requests.idempotent_batch(4711, sequence, b"%d" % sequence) for sequence in range(5)]
    answers = [single_requests.send(node.kafka, TOPIC, batch) for batch in batches]
    assert answers == [(single_requests.NONE, offset) for offset in range(5)]
    world.offload()
    node.kill()
    whole_directory(node.partition_dir(TOPIC))
    node.start()
    until(
        lambda: single_requests.send(node.kafka, TOPIC, batches[0])[0] != single_requests.LEADER_NOT_AVAILABLE,
        "the partition leads",
    )
    assert [single_requests.send(node.kafka, TOPIC, batch) for batch in batches] == answers
    assert single_requests.send(node.kafka, TOPIC, single_requests.idempotent_batch(4711, 5, b"5")) == (
        single_requests.NONE,
        5,
    )
    assert (
        single_requests.send(node.kafka, TOPIC, single_requests.idempotent_batch(4711, 9, b"9"))[0]
        == single_requests.OUT_OF_ORDER_SEQUENCE
    )


def test_an_older_copy_of_the_directory_is_discarded(world: World, tmp_path: Path) -> None:
    """The copy is consistent, but ends below the flushed end that is on record."""
    directory, copy = world.node.partition_dir(TOPIC), tmp_path / "copy"
    with world.load() as load:
        load.more(FIRST)
        load.settle()
        world.node.stop()
        shutil.copytree(directory, copy)
        world.node.start()
        load.more(FIRST)
        load.settle()
        world.offload()
        world.node.stop()
        shutil.rmtree(directory)
        shutil.copytree(copy, directory)
        world.proxy.always(hang_up_before())
        world.node.start()
        assert single_requests.produce(world.node.kafka, TOPIC, b"too early")[0] == single_requests.LEADER_NOT_AVAILABLE
        world.proxy.clear()
        load.more(FIRST)
        load.settle()
    world.judge()
    world.sound()


@pytest.mark.parametrize(
    "loss", [whole_directory, *(pytest.param(loss, marks=pytest.mark.faults) for loss in LOSSES[1:])]
)
def test_a_lost_log_recovers_when_the_store_is_reachable(world: World, loss: Callable[[Path], None]) -> None:
    """The partition waits across restarts, too. The store's first answer may be an error."""
    world.write(FIRST)
    world.offload()
    world.node.kill()
    loss(world.node.partition_dir(TOPIC))
    world.proxy.always(hang_up_before())
    for _ in range(2):
        world.node.start()
        assert single_requests.produce(world.node.kafka, TOPIC, b"too early")[0] == single_requests.LEADER_NOT_AVAILABLE
        assert single_requests.fetch(world.node.kafka, TOPIC, 0).code == single_requests.LEADER_NOT_AVAILABLE
        world.node.kill()
    world.proxy.clear()
    world.proxy.always(answer(403, "AccessDenied"), path="manifests")
    world.node.flags += ["--log-level", "DEBUG"]
    world.node.start()
    until(lambda: "partition.work_failed" in world.node.output(), "the manifest is requested")
    assert single_requests.produce(world.node.kafka, TOPIC, b"too early")[0] == single_requests.LEADER_NOT_AVAILABLE

    world.proxy.clear()
    world.write(FIRST)
    world.sound()


def test_the_sidecar_cannot_be_read_at_first(world: World) -> None:
    """Until the sidecar can be read, nothing is discarded and appends are refused."""
    world.write(FIRST)
    world.offload()
    world.node.kill()
    shutil.rmtree(world.node.partition_dir(TOPIC))
    world.proxy.always(answer(403, "AccessDenied"), path=".idx")
    world.node.flags += ["--log-level", "DEBUG"]
    world.node.start()
    until(lambda: "partition.work_failed" in world.node.output(), "the sidecar is requested")
    assert single_requests.produce(world.node.kafka, TOPIC, b"too early")[0] == single_requests.LEADER_NOT_AVAILABLE

    world.proxy.clear()
    world.write(FIRST)
    world.sound()
