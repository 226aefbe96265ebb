"""The role's policy against the handler's actual calls: each call is allowed, and each permission is used by a call."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import boto3
import pytest

from lambdas.verify_commit import handle
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.cold.stores.s3_blocking import BlockingS3Store
from tests.lambdas.support import READER, SETTINGS, Context, World, batch, hint
from tests.storage_tiers.cold.support import DAY, stored_manifest
from tests.support import s3_servers
from tests.support.clock import SeededRng
from tests.support.node import ROOT

TEMPLATE = ROOT / "terraform" / "modules" / "lambdas" / "verify_commit_policy.json.tftpl"
BUCKET_ARN = f"arn:aws:s3:::{SETTINGS.location.bucket}"
VALUES = {
    "bucket_arn": BUCKET_ARN,
    "prefix": f"{SETTINGS.location.prefix}/",
    "reader": READER,
    "key_arn": "arn:aws:kms:us-east-1:123456789012:key/k",
    "queue_arn": "arn:aws:sqs:us-east-1:123456789012:hints",
    "log_group_arn": "arn:aws:logs:us-east-1:123456789012:log-group:g",
}
#: The permission that each S3 operation needs.
ACTIONS = {"GetObject": "s3:GetObject", "PutObject": "s3:PutObject", "ListObjectsV2": "s3:ListBucket"}
#: Statements granted for needs other than the handler's own calls, with the reason.
WITHOUT_A_CALL = {
    "LearnThatAnObjectIsMissing": "without s3:ListBucket S3 answers a GET of a missing object with 403, not with 404",
    "ReadAndWriteEncrypted": "S3 asks KMS in the caller's name",
    "BeWoken": "the event source mapping asks the queue in the function's name",
    "Log": "the runtime writes what the function prints",
}


def policy() -> list[dict[str, Any]]:
    text = TEMPLATE.read_text()
    for name, value in VALUES.items():
        text = text.replace(f"${{{name}}}", value)
    assert "${" not in text
    statements: list[dict[str, Any]] = json.loads(text)["Statement"]
    return statements


@pytest.fixture
def calls(tmp_path: Path, moto: s3_servers.S3Server) -> Iterator[list[tuple[str, str]]]:
    """(operation, ARN) of the handler's S3 calls in a run with every case: a missing cursor, pages, damage, swept
    segments, a duplicate."""
    moto.create_bucket(SETTINGS.location.bucket)
    session = boto3.session.Session(s3_servers.ACCESS_KEY, s3_servers.SECRET_KEY, region_name=s3_servers.REGION)
    made: list[tuple[str, str]] = []

    def record(params: dict[str, Any], model: Any, **_: object) -> None:
        made.append((model.name, f"arn:aws:s3:::{params['Bucket']}/{params['Key']}" if "Key" in params else BUCKET_ARN))

    session.events.register("provide-client-params.s3", record)
    location = StoreLocation.parse(SETTINGS.location.url, endpoint=moto.endpoint)
    yield made_by_a_life(World(tmp_path), BlockingS3Store(location, session=session), moto, made)


def made_by_a_life(
    world: World, store: BlockingS3Store, moto: s3_servers.S3Server, made: list[tuple[str, str]]
) -> list[tuple[str, str]]:
    import asyncio

    def wake() -> None:
        for info in world.store.list(""):
            key = f"{SETTINGS.location.prefix}/{info.key}"
            moto.client.put_object(Bucket=SETTINGS.location.bucket, Key=key, Body=world.store.get(info.key).data)
        answer = handle(batch(hint(), hint()), Context(), SETTINGS, store, world.clock, SeededRng(1))
        assert answer == {"batchItemFailures": []}

    async def live() -> None:
        for _ in range(70):
            await world.extend(1)

    async def lose() -> None:
        for _ in range(3):
            await world.extend()
        await world.tier.expire(world.end - 10)
        world.clock.advance(3 * DAY / 1000)
        for _ in range(2):
            await world.tier.sweep(DAY)

    asyncio.run(live())
    assert stored_manifest(world.store).pages
    wake()
    asyncio.run(lose())
    wake()
    return made


def allowed(statement: dict[str, Any], action: str, resource: str) -> bool:
    return action in statement["Action"] and any(fnmatchcase(resource, pattern) for pattern in statement["Resource"])


@pytest.mark.s3
def test_every_call_is_allowed_and_nothing_more(calls: list[tuple[str, str]]) -> None:
    statements = policy()
    used: set[str] = set()
    for operation, resource in calls:
        granting = [found["Sid"] for found in statements if allowed(found, ACTIONS[operation], resource)]
        assert granting, f"the role may not {operation} {resource}"
        used.update(granting)
    assert {operation for operation, _ in calls} == {"GetObject", "PutObject"}
    kinds = {resource.rpartition(".")[2] for _, resource in calls}
    assert kinds == {"json", "gz", "log", "idx", "cursor", "verdict", "missed"}
    assert {found["Sid"] for found in statements} - used == set(WITHOUT_A_CALL)
    for found in statements:
        if found["Sid"] in used:
            needed = {
                ACTIONS[operation] for operation, resource in calls if allowed(found, ACTIONS[operation], resource)
            }
            assert set(found["Action"]) == needed


def test_it_writes_nowhere_but_in_its_own_place() -> None:
    writes = [found for found in policy() if "s3:PutObject" in found["Action"]]
    for key in ("c/topics/t/id/manifests/00000.json", "c/cluster.json", "c/readers/another/cursors/t/id/00000.cursor"):
        resource = f"{BUCKET_ARN}/{SETTINGS.location.prefix}/{key}"
        assert not any(allowed(found, "s3:PutObject", resource) for found in writes)
    assert not any("*" in action for found in policy() for action in found["Action"])
