"""UpdateFeatures, key 57, versions 0 to 2 (KIP-584).

Updates are atomic; the answers of v0 and v1 list each updated feature.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from grpc_api.contract.features import FeatureChange, FeatureUpdate
from kafka_gateway.errors import code_of, message_of
from kafka_gateway.message_handler import Call, Fields
from storage_tiers.errors import InvalidUpdateVersion

_CHANGES = {change.value: change for change in FeatureChange}


async def serve(request: Any, call: Call) -> Fields:
    # A request may repeat a feature thousands of times, and the check does not yield: each distinct update is checked once. The
    # last update of each feature follows, because the last one takes effect.
    distinct: dict[FeatureUpdate, None] = {}
    last: dict[str, FeatureUpdate] = {}
    async for row in call.each(request.feature_updates):
        update = FeatureUpdate(row.feature, int(row.max_version_level), _change_of(row))
        distinct[update] = None
        last[update.name] = update
    try:
        await call.core.features.update(
            [*distinct, *last.values()], validate_only=getattr(request, "validate_only", False)
        )
    except InvalidUpdateVersion as error:
        return refuse(request, call, code_of(error), message_of(error))
    results: Iterable[Any] = ()
    if call.messages.version < 2:
        results = (
            call.make("UpdatableFeatureResult", feature=row.feature, error_code=0, error_message="NONE")
            for row in request.feature_updates
        )
    return {"error_code": 0, "error_message": None, "results": results}


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"error_code": code, "error_message": message, "results": ()}


def _change_of(row: Any) -> FeatureChange | None:
    if hasattr(row, "upgrade_type"):
        return _CHANGES.get(int(row.upgrade_type))
    return FeatureChange.SAFE_DOWNGRADE if row.allow_downgrade else FeatureChange.UPGRADE
