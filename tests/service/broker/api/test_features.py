"""Feature levels of a whole node: what a new directory has, and what a restart keeps."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from grpc_api.contract.features import FeatureChange, FeatureUpdate
from service.broker.api.feature_service import FeatureService
from storage_tiers.errors import InvalidUpdateVersion
from tests.service.broker.support import Running, running

NAME = "transaction.version"


def features_of(node: Running) -> FeatureService:
    return node.node.broker.core.features


def level(node: Running) -> int:
    return next(each.finalized for each in features_of(node).list() if each.name == NAME)


async def set_level(node: Running, to: int, change: FeatureChange, *, validate_only: bool = False) -> None:
    await features_of(node).update([FeatureUpdate(NAME, to, change)], validate_only=validate_only)


async def test_a_level_outlives_restarts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "service.broker.api.feature_service")
    async with running(tmp_path / "data") as node:
        assert level(node) == 2, "a new directory has the highest"
        await set_level(node, 0, FeatureChange.SAFE_DOWNGRADE, validate_only=True)
        assert level(node) == 2
        await set_level(node, 0, FeatureChange.SAFE_DOWNGRADE)
        assert level(node) == 0
    async with running(tmp_path / "data") as node:
        assert level(node) == 0, "a start raises nothing"
        with pytest.raises(InvalidUpdateVersion, match="Can't downgrade to a newer version"):
            await set_level(node, 2, FeatureChange.UNSAFE_DOWNGRADE)
        await set_level(node, 2, FeatureChange.UPGRADE)
    async with running(tmp_path / "data") as node:
        assert level(node) == 2
    changes = [
        record.__dict__["fields"] for record in caplog.records if record.__dict__.get("event") == "feature.updated"
    ]
    assert [(each["from_level"], each["to_level"]) for each in changes] == [(2, 0), (0, 2)]
