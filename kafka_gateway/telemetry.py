"""Clients that push their metrics (KIP-714): who may push what, and when. The node hands what comes to a receiver.

Pure but for the receiver: time and chance are arguments. A client's instance is known by the id that it was given, and of
the last INSTANCES that were heard of. Checks and their order are Kafka 4.2's (ClientMetricsManager), except that Kafka
forgets an instance when its connection closes; here a client that comes back is the same one, and is not held back.
"""

from __future__ import annotations

import re
import zlib
from base64 import urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from kafka_gateway.errors import ErrorCode
from storage_tiers.errors import CorruptRecord, InvalidRecord, RecordTooLarge
from storage_tiers.records.codecs import Codec, decompress

#: Client instances that are remembered. Kafka: ClientMetricsManager.CACHE_MAX_SIZE.
INSTANCES = 16_384
DEFAULT_INTERVAL_MS = 300_000
EVERYTHING = "*"
#: In Kafka's order of preference: zstd, lz4, gzip, snappy. None at all is taken too.
ACCEPTED_CODECS = (Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY)
#: What a push may inflate to, as a multiple of `telemetry.max.bytes`.
INFLATION = 16

NOBODY = bytes(16)


class PushedMetrics(NamedTuple):
    """`otlp` is OpenTelemetry's MetricsData, version 1, as protobuf."""

    instance_id: bytes
    client_id: str
    otlp: bytes
    terminating: bool


class Receiver(Protocol):
    @property
    def enabled(self) -> bool:
        """Whether the node is configured to collect clients' metrics."""

    def receive(self, pushed: PushedMetrics) -> None:
        """InvalidRecord if it cannot be read."""


class Subscription(NamedTuple):
    """`metrics` are prefixes of names, `match` is (what, pattern) pairs that must all fit a client."""

    metrics: Sequence[str]
    interval_ms: int
    match: Sequence[tuple[str, str]]

    def fits(self, client: dict[str, str]) -> bool:
        return all(re.fullmatch(pattern, client.get(what, "")) for what, pattern in self.match)


class Subscribed(NamedTuple):
    instance_id: bytes
    subscription_id: int
    interval_ms: int
    metrics: Sequence[str]


class _Instance:
    __slots__ = ("interval_ms", "pushed_ms", "subscription_id")

    def __init__(self, subscription_id: int, interval_ms: int) -> None:
        self.subscription_id = subscription_id
        self.interval_ms = interval_ms
        #: Of the last push since it asked for its subscription; None before it.
        self.pushed_ms: float | None = None


class Telemetry:
    def __init__(self, receiver: Receiver | None, *, max_bytes: int, instances: int = INSTANCES) -> None:
        self._receiver = receiver
        self.max_bytes = max_bytes
        self._most = instances
        self._instances: OrderedDict[bytes, _Instance] = OrderedDict()

    def __len__(self) -> int:
        return len(self._instances)

    @property
    def enabled(self) -> bool:
        return self._receiver is not None and self._receiver.enabled

    def subscribe(self, instance_id: bytes, client_id: str, subscriptions: Sequence[Subscription]) -> Subscribed:
        """What this client is to push, from now on; `instance_id` is its own or a fresh one."""
        client = {"client_id": client_id, "client_instance_id": uuid_text(instance_id)}
        fitting = [each for each in subscriptions if each.metrics and each.fits(client)]
        names = dict.fromkeys(name for each in fitting for name in each.metrics)
        metrics = (EVERYTHING,) if EVERYTHING in names else tuple(names)
        interval = min((each.interval_ms for each in fitting), default=DEFAULT_INTERVAL_MS)
        number = zlib.crc32("\0".join((*sorted(metrics), str(interval))).encode() + instance_id)
        number -= (number & 0x80000000) << 1
        self._remember(instance_id, _Instance(number, interval))
        return Subscribed(instance_id, number, interval, metrics)

    def push(
        self,
        instance_id: bytes,
        client_id: str,
        subscription_id: int,
        codec: int,
        metrics: bytes,
        *,
        terminating: bool,
        now_ms: float,
    ) -> int:
        """The error code. A last push, before a client ends, may come early."""
        if instance_id == NOBODY:
            return ErrorCode.INVALID_REQUEST
        known = self._instances.get(instance_id)
        if known is None:
            return ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        if known.pushed_ms is not None and now_ms - known.pushed_ms < known.interval_ms and not terminating:
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED
        known.pushed_ms = now_ms
        if subscription_id != known.subscription_id:
            return ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        if codec != Codec.NONE and codec not in ACCEPTED_CODECS:
            return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        if len(metrics) > self.max_bytes:
            return ErrorCode.TELEMETRY_TOO_LARGE
        if terminating:
            del self._instances[instance_id]
        if not metrics or self._receiver is None or not self._receiver.enabled:
            return ErrorCode.NONE
        try:
            otlp = bytes(decompress(Codec(codec), metrics, max_bytes=INFLATION * self.max_bytes))
            self._receiver.receive(PushedMetrics(instance_id, client_id, otlp, terminating))
        except (CorruptRecord, RecordTooLarge, InvalidRecord):
            return ErrorCode.INVALID_RECORD
        return ErrorCode.NONE

    def _remember(self, instance_id: bytes, instance: _Instance) -> None:
        self._instances[instance_id] = instance
        self._instances.move_to_end(instance_id)
        if len(self._instances) > self._most:
            self._instances.popitem(last=False)


def uuid_text(instance_id: bytes) -> str:
    """As Kafka prints a Uuid."""
    return urlsafe_b64encode(instance_id).rstrip(b"=").decode()
