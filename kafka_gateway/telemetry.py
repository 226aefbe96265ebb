"""Clients that push their metrics (KIP-714): who may push what, and when. The node hands what comes to a receiver.

Pure but for the receiver and the thread that it is called in: time is an argument. Checks, their order and their oddities are
Kafka 4.2's (ClientMetricsManager, ClientMetricsInstance); tests/differential holds the two together. An instance is forgotten
when its connection closes, when nothing was heard of it for three intervals, and when there are more than INSTANCES.
"""

from __future__ import annotations

import asyncio
import functools
import re
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

from kafka_gateway.client import ConnectedClient
from kafka_gateway.errors import ErrorCode
from storage_tiers.errors import CorruptRecord, InvalidRecord, RecordTooLarge
from storage_tiers.records.codecs import Codec, decompress
from storage_tiers.uuids import uuid_text

#: Client instances that are remembered. Kafka: ClientMetricsManager.CACHE_MAX_SIZE.
INSTANCES = 16_384
#: The least time for which one is. Kafka: ClientMetricsManager.DEFAULT_CACHE_EXPIRY_MS.
EXPIRY_MS = 60_000
DEFAULT_INTERVAL_MS = 300_000
EVERYTHING = "*"
#: In Kafka's order of preference: zstd, lz4, gzip, snappy. None at all is taken too.
ACCEPTED_CODECS = (Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY)
#: What a push may inflate to, as a multiple of `telemetry.max.bytes`.
INFLATION = 16
#: Characters of what a client says of itself; a longer text fits no pattern, so that patterns can be known to be quick.
LONGEST_MATCHED = 128
#: Kafka: Uuid.RESERVED.
RESERVED = (bytes(16), bytes(15) + b"\1")


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
        """In a thread. InvalidRecord if it cannot be read."""


class Subscription(NamedTuple):
    """`metrics` are prefixes of names, `match` is (selector, pattern) pairs that must all fit a client."""

    metrics: Sequence[str]
    interval_ms: int
    match: Sequence[tuple[str, str]]

    def fits(self, known: Mapping[str, str]) -> bool:
        texts = ((known.get(selector, ""), pattern) for selector, pattern in self.match)
        return all(len(text) <= LONGEST_MATCHED and re.fullmatch(pattern, text) for text, pattern in texts)


class Asker(NamedTuple):
    """One request's client: the instance that it says it is, and what its connection knows of it."""

    instance_id: bytes
    client_id: str
    client: ConnectedClient

    def known(self) -> dict[str, str]:
        """What a subscription's `match` can name."""
        return {
            "client_instance_id": uuid_text(self.instance_id),
            "client_id": self.client_id,
            "client_software_name": self.client.software_name,
            "client_software_version": self.client.software_version,
            "client_source_address": self.client.host,
            "client_source_port": str(self.client.port),
        }


class Subscribed(NamedTuple):
    subscription_id: int
    interval_ms: int
    metrics: Sequence[str]


class _Instance:
    """Times are those of the last request that was not too early."""

    __slots__ = ("asked_ms", "error", "heard_ms", "pushed_ms", "subscribed", "subscriptions", "terminating")

    def __init__(self, subscribed: Subscribed, subscriptions: Sequence[Subscription]) -> None:
        self.subscribed = subscribed
        self.subscriptions = subscriptions
        self.asked_ms: float | None = None
        self.pushed_ms: float | None = None
        self.heard_ms = 0.0
        self.error = ErrorCode.NONE
        self.terminating = False

    def may_ask(self, now_ms: float) -> bool:
        times = [each for each in (self.asked_ms, self.pushed_ms) if each is not None]
        if times and now_ms - max(times) < self.subscribed.interval_ms:
            return False
        self.asked_ms = now_ms
        return True

    def may_push(self, now_ms: float) -> bool:
        """At once where it asked since its last push: clients begin at a random moment of the interval."""
        asked = self.asked_ms is not None and (self.pushed_ms is None or self.asked_ms > self.pushed_ms)
        if not asked and self.pushed_ms is not None and now_ms - self.pushed_ms < self.subscribed.interval_ms:
            return False
        self.pushed_ms = now_ms
        return True

    def is_stale(self, now_ms: float) -> bool:
        return now_ms - self.heard_ms >= max(EXPIRY_MS, 3 * self.subscribed.interval_ms)


class Telemetry:
    def __init__(self, receiver: Receiver | None, *, max_bytes: int, instances: int = INSTANCES) -> None:
        self._receiver = receiver
        self.max_bytes = max_bytes
        self._most = instances
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="telemetry")
        self._instances: OrderedDict[bytes, _Instance] = OrderedDict()

    def __len__(self) -> int:
        return len(self._instances)

    @property
    def enabled(self) -> bool:
        return self._receiver is not None and self._receiver.enabled

    def subscribe(self, asker: Asker, subscriptions: Sequence[Subscription], now_ms: float) -> Subscribed | None:
        """What this client is to push from now on; None if it asks too early."""
        instance = self._instance(asker, subscriptions, now_ms)
        again = instance.error in (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        if not instance.may_ask(now_ms) and not again:
            return None
        instance.error = ErrorCode.NONE
        return instance.subscribed

    async def push(
        self,
        asker: Asker,
        subscriptions: Sequence[Subscription],
        subscription_id: int,
        codec: int,
        metrics: bytes,
        *,
        terminating: bool,
        now_ms: float,
    ) -> int:
        """The error code. A last push, before a client ends, may come early. What is pushed is inflated and received in a
        thread, one push after the other: sixteen megabytes of it take the loop's time for fifty requests."""
        if asker.instance_id in RESERVED:
            return ErrorCode.INVALID_REQUEST
        instance = self._instance(asker, subscriptions, now_ms)
        instance.error = self._refusal(instance, subscription_id, codec, metrics, terminating, now_ms)
        instance.terminating = terminating
        if instance.error == ErrorCode.NONE and metrics:
            received = self._threads.submit(self._receive, asker, codec, metrics, terminating)
            instance.error = await asyncio.wrap_future(received)
        return instance.error

    def _refusal(
        self, instance: _Instance, subscription_id: int, codec: int, metrics: bytes, terminating: bool, now_ms: float
    ) -> ErrorCode:
        if instance.terminating:
            return ErrorCode.INVALID_REQUEST
        if not instance.may_push(now_ms) and not terminating:
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED
        if subscription_id != instance.subscribed.subscription_id:
            return ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        if codec != Codec.NONE and codec not in ACCEPTED_CODECS:
            return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        return ErrorCode.TELEMETRY_TOO_LARGE if len(metrics) > self.max_bytes else ErrorCode.NONE

    def _receive(self, asker: Asker, codec: int, metrics: bytes, terminating: bool) -> ErrorCode:
        try:
            otlp = bytes(decompress(Codec(codec), metrics, max_bytes=INFLATION * self.max_bytes))
            if self._receiver is not None and self._receiver.enabled:
                self._receiver.receive(PushedMetrics(asker.instance_id, asker.client_id, otlp, terminating))
        except (CorruptRecord, RecordTooLarge, InvalidRecord):
            return ErrorCode.INVALID_RECORD
        return ErrorCode.NONE

    # --- instances ----------------------------------------------------------------------------------------------------
    def _instance(self, asker: Asker, subscriptions: Sequence[Subscription], now_ms: float) -> _Instance:
        """The one that is known, or a new one: also where subscriptions have changed, so that it may ask at once."""
        instance = self._instances.get(asker.instance_id)
        if instance is None or instance.subscriptions != subscriptions or instance.is_stale(now_ms):
            instance = _Instance(_subscribed(asker, subscriptions), subscriptions)
            self._instances[asker.instance_id] = instance
            asker.client.left = functools.partial(self._forget, asker.instance_id)
            if len(self._instances) > self._most:
                self._instances.popitem(last=False)
        self._instances.move_to_end(asker.instance_id)
        instance.heard_ms = now_ms
        return instance

    def _forget(self, instance_id: bytes) -> None:
        self._instances.pop(instance_id, None)


def _subscribed(asker: Asker, subscriptions: Sequence[Subscription]) -> Subscribed:
    known = asker.known()
    fitting = [each for each in subscriptions if each.fits(known)]
    names = dict.fromkeys(name for each in fitting for name in each.metrics)
    metrics = (EVERYTHING,) if EVERYTHING in names else tuple(names)
    interval = min((DEFAULT_INTERVAL_MS, *(each.interval_ms for each in fitting)))
    number = zlib.crc32("\0".join((*sorted(metrics), str(interval))).encode() + asker.instance_id)
    return Subscribed(number - ((number & 0x80000000) << 1), interval, metrics)
