"""The object store is down, slow, overloaded, denied, or returns other bytes than it was given.

In every case local data stays, and produce continues up to the disk watermark. A cold read gets an error that a client may
retry, and never a wrong byte. When the store recovers, the node resumes without help.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults import bucket, single_requests
from tests.faults.clients import TIERED, create_topic, read_everything, seal, until
from tests.faults.disks import small_disk
from tests.faults.world import World, a_world
from tests.support.node import Node
from tests.support.s3_proxy import (
    Action,
    Answer,
    Forward,
    Request,
    S3Proxy,
    answer,
    delayed,
    hang_up_after,
    hang_up_before,
    tampered,
    truncated,
)
from tests.support.s3_servers import BUCKET, S3Server

TOPIC = "troubled"
COLD = 300
#: Longer than the tier process retries for a reader before it gives up.
PATIENCE_MS = 30_000


@pytest.fixture
def troubled(tmp_path: Path, versitygw: S3Server) -> Iterator[World]:
    """Only the bucket holds the first `COLD` records, and no client has read them yet."""
    with a_world(tmp_path, versitygw, TOPIC) as world:
        world.create()
        world.write(COLD)
        world.offload()
        yield world


def denied() -> Action:
    return answer(403, "AccessDenied")


QUICK = [pytest.param(denied, id="access denied")]
SLOW = [
    pytest.param(hang_up_before, id="down"),
    pytest.param(lambda: answer(503), id="503"),
    pytest.param(lambda: answer(500, "InternalError"), id="500"),
    pytest.param(hang_up_after, id="answers lost"),
    pytest.param(lambda: delayed(3600), id="hangs"),
]


@pytest.mark.parametrize(
    "trouble", [*QUICK, *(pytest.param(*p.values, id=p.id, marks=pytest.mark.faults) for p in SLOW)]
)
def test_the_store_gives_no_answer(troubled: World, trouble: Callable[[], Action]) -> None:
    troubled.proxy.always(trouble())
    found = troubled.fetch(0, PATIENCE_MS)
    assert (found.code, found.data) == (single_requests.KAFKA_STORAGE_ERROR, b"")

    troubled.write(200)
    seal(troubled.node, TOPIC, wait=False)
    hot = troubled.fetch(COLD)
    assert hot.code == single_requests.NONE and hot.data
    assert hot.high_watermark == COLD + 200
    assert troubled.local_bytes()
    assert troubled.node.running and troubled.node.readyz() == 200

    troubled.proxy.clear()
    troubled.sound()


def test_a_slow_store_serves(troubled: World) -> None:
    troubled.proxy.always(delayed(0.7))
    assert troubled.fetch(0, wait_ms=100).code == single_requests.NONE, "it is fetched in the background"
    troubled.write(200)
    troubled.sound()


def test_a_store_unreachable_at_the_start_is_named_and_used_later(troubled: World) -> None:
    troubled.write(100)
    troubled.node.stop()
    troubled.proxy.always(hang_up_before())
    troubled.node.start()
    status, body = troubled.node.get("/readyz")
    assert status == 200 and "does not answer" in json.loads(body)["store"]
    assert not troubled.fetch(0, wait_ms=100).data
    troubled.write(100)
    assert troubled.fetch(COLD).high_watermark == COLD + 200

    troubled.proxy.clear()
    until(lambda: json.loads(troubled.node.get("/readyz")[1])["store"] == "ok", "the store is in use")
    troubled.sound()


@pytest.mark.parametrize("path", [".log", ".idx"])
@pytest.mark.parametrize(
    "damage",
    [pytest.param(tampered(7), id="tampered"), pytest.param(truncated(9), id="truncated", marks=pytest.mark.faults)],
)
def test_bytes_that_differ_from_those_stored_are_never_served(troubled: World, damage: Action, path: str) -> None:
    troubled.proxy.always(damage, method="GET", path=path)
    found = troubled.fetch(0, PATIENCE_MS)
    assert found.code in (single_requests.CORRUPT_MESSAGE, single_requests.KAFKA_STORAGE_ERROR) and not found.data
    troubled.proxy.clear()
    troubled.sound()


def test_a_damaged_object_is_never_served_but_its_neighbours_are(troubled: World) -> None:
    troubled.write(COLD)
    troubled.offload()
    with bucket.opened(troubled.node.store, troubled.server.endpoint) as store:
        first, *_, last = next(iter(bucket.manifests(store, TOPIC))).segments
    assert troubled.server.directory is not None
    path = troubled.server.directory / troubled.node.store.removeprefix("s3://") / first.key
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    found = troubled.fetch(first.base, PATIENCE_MS)
    assert found.code == single_requests.CORRUPT_MESSAGE and not found.data
    until(lambda: troubled.fetch(last.base).data, "the last segment is served")
    with bucket.opened(troubled.node.store, troubled.server.endpoint) as store:
        assert any(first.key in finding for finding in bucket.findings(store))


def test_offloaded_bytes_equal_the_written_ones(troubled: World) -> None:
    """The node notices bytes that change on their way to the store before a manifest names them."""
    attempts: list[str] = []

    async def damage(request: Request, forward: Forward) -> Answer:
        attempts.append(request.path)
        body = bytearray(request.body)
        body[len(body) // 2] ^= 1
        return await forward(replace(request, body=bytes(body)))

    troubled.proxy.always(damage, method="PUT", path=".log")
    troubled.write(200)
    seal(troubled.node, TOPIC, wait=False)
    until(lambda: len(attempts) > 1, "the offload is retried")
    assert troubled.node.running and troubled.local_bytes()
    troubled.proxy.clear()
    troubled.sound()


def test_produce_continues_up_to_the_disk_watermark(tmp_path: Path, versitygw: S3Server) -> None:
    """Then produce is refused, before the disk is full; when the store is back, space returns and produce resumes."""
    with small_disk(tmp_path / "data", 32), S3Proxy(versitygw.endpoint) as proxy:
        marks = {"tidelog.disk.watermark.slow": "0.5", "tidelog.disk.watermark.refuse": "0.6"}
        store = f"s3://{BUCKET}/troubled/{tmp_path.name}"
        with Node(tmp_path, store=store, settings=marks, flags=["--s3-endpoint", proxy.endpoint]) as node:
            create_topic(node, TOPIC, configs={**TIERED, "internal.segment.bytes": str(1 << 20)})
            proxy.always(hang_up_before())
            kept: list[tuple[int, bytes]] = []
            values = (b"%07d" % n + bytes(200_000) for n in range(10_000))
            for value in values:
                code, offset = single_requests.produce(node.kafka, TOPIC, value)
                if code:
                    break
                kept.append((offset, value))
            assert code == single_requests.KAFKA_STORAGE_ERROR
            assert len(kept) * 200_000 > 10 << 20
            assert b"%07d" % 0 in single_requests.fetch(node.kafka, TOPIC, 0).data, "reads continue"

            proxy.clear()
            until(
                lambda: single_requests.produce(node.kafka, TOPIC, b"after")[0] == single_requests.NONE,
                "produce continues",
            )
            found = read_everything(node.kafka, TOPIC, 1).partitions[0]
            assert [(seen.offset, seen.content.value) for seen in found[: len(kept)]] == kept
