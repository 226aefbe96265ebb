"""ApiVersions, key 18, versions 0 to 4; an unknown version is answered as version 0 with UNSUPPORTED_VERSION (KIP-511).

The answer comes from the registry's table and from the cluster's feature levels. v3 has features (KIP-584), but clients of v3
fail on features that begin at level 0; only v4 includes such features (KIP-1022). Requests from v3 on name the client's
software. The answer is INVALID_REQUEST if a name does not match Kafka's pattern.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from grpc_api.contract.node import NodeCore
from kafka_gateway.connection import Piece
from kafka_gateway.errors import ErrorCode
from kafka_gateway.hot_parse import body_start
from kafka_gateway.messages import Messages, messages_of
from kafka_gateway.options import Options
from kafka_gateway.reply import Reply

KEY = 18
#: Advertised only if the node collects clients' metrics (KIP-714).
TELEMETRY_KEYS = (71, 72)
#: Kafka: ApiVersionsRequest.SOFTWARE_NAME_VERSION_PATTERN
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class ApiVersionsHandler:
    """`ranges`: api key -> (lowest, highest) advertised."""

    def __init__(self, core: NodeCore, options: Options, ranges: Mapping[int, tuple[int, int]]) -> None:
        self._core = core
        self._options = options
        self._ranges = ranges
        self.errors: Counter[int] = Counter()

    def handle(self, data: bytearray, view: memoryview, start: int, end: int, version: int, correlation: int) -> Reply:
        messages = messages_of("api_versions", version)
        request = messages.read(bytes(view[body_start(data, start, end, version >= 3) : end]))
        named = (getattr(request, "client_software_name", "-"), getattr(request, "client_software_version", "-"))
        if version >= 3 and not all(_SOFTWARE.fullmatch(name) for name in named):
            self.errors[ErrorCode.INVALID_REQUEST] += 1
            return (messages.respond(correlation, error_code=ErrorCode.INVALID_REQUEST, api_keys=()),)
        if version >= 3:
            client = self._options.request_context.client
            client.software_name, client.software_version = named
        return self._respond(version, correlation, 0, self._ranges)

    def unsupported(self, correlation: int) -> Sequence[Piece]:
        """Answers an unknown version with the versions of this API, encoded as version 0, which every client can read."""
        self.errors[ErrorCode.UNSUPPORTED_VERSION] += 1
        return self._respond(0, correlation, ErrorCode.UNSUPPORTED_VERSION, {KEY: self._ranges[KEY]})

    def _respond(
        self, version: int, correlation: int, code: int, ranges: Mapping[int, tuple[int, int]]
    ) -> Sequence[Piece]:
        messages = messages_of("api_versions", version)
        keys: tuple[Any, ...] = tuple(
            messages.make("ApiVersion", api_key=key, min_version=low, max_version=high)
            for key, (low, high) in ranges.items()
            if self._is_advertised(key)
        )
        features = _features(messages, self._core) if version >= 3 else {}
        return (messages.respond(correlation, error_code=code, api_keys=keys, **features),)

    def _is_advertised(self, key: int) -> bool:
        return key not in TELEMETRY_KEYS or self._options.telemetry.enabled


def _features(messages: Messages, core: NodeCore) -> dict[str, Any]:
    features = core.features.list()
    supported = tuple(
        messages.make("SupportedFeatureKey", name=each.name, min_version=each.lowest, max_version=each.highest)
        for each in features
        if each.lowest > 0 or messages.version >= 4
    )
    finalized = tuple(
        messages.make(
            "FinalizedFeatureKey",
            name=each.name,
            max_version_level=each.finalized,
            min_version_level=each.finalized,
        )
        for each in features
        if each.finalized > 0
    )
    epoch = core.node.quorum().high_watermark - 1
    return {"supported_features": supported, "finalized_features": finalized, "finalized_features_epoch": epoch}
