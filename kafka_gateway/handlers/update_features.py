"""UpdateFeatures, key 57, versions 0 to 2 (KIP-584): each feature has only one supported level.

So an update can only set the current level again. Updates are atomic; v0 and v1 list each feature that was updated. Order of
checks and messages are Kafka's (FeatureControlManager of 4.2).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kafka_gateway.errors import ErrorCode
from kafka_gateway.features import FEATURES
from kafka_gateway.message_handler import Call, Fields

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


async def serve(request: Any, call: Call) -> Fields:
    node_id = call.core.node.quorum().leader_id
    async for update in call.each(request.feature_updates):
        problem = _problem(update.feature, update.max_version_level, _kind_of(update), node_id)
        if problem is not None:
            message = (
                "The update failed for all features since the following feature had an error: "
                f"Invalid update version {update.max_version_level} for feature {update.feature}. {problem}"
            )
            return refuse(request, call, ErrorCode.INVALID_UPDATE_VERSION, message)
    results: Iterable[Any] = ()
    if call.messages.version < 2:
        results = (
            call.make("UpdatableFeatureResult", feature=update.feature, error_code=0, error_message="NONE")
            for update in request.feature_updates
        )
    return {"error_code": 0, "error_message": None, "results": results}


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"error_code": code, "error_message": message, "results": ()}


def _kind_of(update: Any) -> int:
    if hasattr(update, "upgrade_type"):
        return int(update.upgrade_type)
    return SAFE_DOWNGRADE if update.allow_downgrade else UPGRADE


def _problem(name: str, level: int, kind: int, node_id: int) -> str | None:
    """Why the level cannot be set; None if it is the current one."""
    if kind not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        return "The controller does not support the given upgrade type."
    if level < 0:
        return "A feature version cannot be less than 0."
    known = FEATURES.get(name)
    if known is None:
        if level == 0:
            return f"Feature {name} not found."
        return f"Local controller {node_id} does not support this feature."
    if not known.lowest <= level <= known.highest:
        return f"Local controller {node_id} only supports versions {known.lowest}-{known.highest}"
    return None
