"""Metrics that clients push (KIP-714): decides which metrics a client pushes and when, and passes them to the node's receiver.

Time is an argument. Only the receiver and the thread that calls it have side effects. The checks, their order and their
oddities are Kafka 4.2's (ClientMetricsManager, ClientMetricsInstance); tests/differential compares the two. An instance is
removed when its connection closes, or when there are more than INSTANCES. After three intervals without a request, the next
request makes a new instance.
"""

from __future__ import annotations

import asyncio
import functools
import re
import zlib
from collections import OrderedDict
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

from kafka_gateway.client import ConnectedClient
from kafka_gateway.errors import ErrorCode
from kafka_gateway.match_patterns import longest_text
from storage_tiers.errors import CorruptRecord, InvalidRecord, RecordTooLarge
from storage_tiers.records.codecs import Codec, decompress
from storage_tiers.steps import run_steps
from storage_tiers.turns import Turn
from storage_tiers.uuids import uuid_text

#: Most client instances in memory. Kafka: ClientMetricsManager.CACHE_MAX_SIZE.
INSTANCES = 16_384
#: Least time in ms that an instance without requests is kept. Kafka: ClientMetricsManager.DEFAULT_CACHE_EXPIRY_MS.
EXPIRY_MS = 60_000
DEFAULT_INTERVAL_MS = 300_000
EVERYTHING = "*"
#: In Kafka's order of preference. Uncompressed metrics are accepted too.
ACCEPTED_CODECS = (Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY)
#: Largest decompressed push, as a multiple of `telemetry.max.bytes`.
INFLATION = 16
#: Kafka: Uuid.RESERVED.
RESERVED = (bytes(16), bytes(15) + b"\1")


class PushedMetrics(NamedTuple):
    """`otlp` is OpenTelemetry's MetricsData, version 1, as protobuf."""

    instance_id: bytes
    client_id: str
    otlp: bytes
    terminating: bool


class Receiver(Protocol):
    """Gets the metrics that clients push (`ClientTelemetryLog`)."""

    @property
    def enabled(self) -> bool:
        """Whether the node is configured to collect clients' metrics."""

    def receive(self, pushed: PushedMetrics) -> None:
        """Called in a thread. Raises InvalidRecord if the metrics cannot be parsed."""


class Subscription(NamedTuple):
    """`metrics` are prefixes of names; `match` are (selector, pattern) pairs, all of which a client must match."""

    metrics: Sequence[str]
    interval_ms: int
    match: Sequence[tuple[str, str]]


def fitting(
    subscriptions: Sequence[Subscription], known: Mapping[str, str]
) -> Generator[None, None, list[Subscription]]:
    """Returns the subscriptions that match a client. Each pattern is a step, because there may be thousands."""
    found = []
    for each in subscriptions:
        for selector, pattern in each.match:
            yield
            text = known.get(selector, "")
            if len(text) > longest_text(pattern) or re.fullmatch(pattern, text) is None:
                break
        else:
            found.append(each)
    return found


class TelemetryClient(NamedTuple):
    """The client of one request: its claimed instance id, its client id, and its connection's data."""

    instance_id: bytes
    client_id: str
    client: ConnectedClient

    def known(self) -> dict[str, str]:
        """The values that a subscription's `match` tests, by selector."""
        return {
            "client_instance_id": uuid_text(self.instance_id),
            "client_id": self.client_id,
            "client_software_name": self.client.software_name,
            "client_software_version": self.client.software_version,
            "client_source_address": self.client.host,
            "client_source_port": str(self.client.port),
        }


class Subscribed(NamedTuple):
    """A client's subscriptions, merged. `metrics` are prefixes of names. `subscription_id` changes with the other fields."""

    subscription_id: int
    interval_ms: int
    metrics: Sequence[str]


class _Instance:
    """`asked_ms` and `pushed_ms` are the times of the last subscription request and the last push that were not too early.
    `heard_ms` is the time of the last request of any kind."""

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
        """Whether a push may come now; if so, records its time. The first push after the client fetched its subscription may
        come early, because clients start at a random time of the interval."""
        asked = self.asked_ms is not None and (self.pushed_ms is None or self.asked_ms > self.pushed_ms)
        if not asked and self.pushed_ms is not None and now_ms - self.pushed_ms < self.subscribed.interval_ms:
            return False
        self.pushed_ms = now_ms
        return True

    def is_stale(self, now_ms: float) -> bool:
        return now_ms - self.heard_ms >= max(EXPIRY_MS, 3 * self.subscribed.interval_ms)


class Telemetry:
    """The clients that push metrics, by client instance id. There are at most `instances`: a new one evicts the client that
    has been silent longest. `max_bytes` bounds a push before it is decompressed."""

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

    async def know(
        self, caller: TelemetryClient, subscriptions: Sequence[Subscription], now_ms: float, turn: Turn
    ) -> None:
        """Matches the subscriptions with a client that is new, or for which they have changed, in slices. Call it before
        `subscribe` and `push`."""
        if self._is_known(caller, subscriptions, now_ms):
            return
        matching = await turn.through(fitting(subscriptions, caller.known()))
        self._begin(caller, subscriptions, matching, now_ms)

    def subscribe(
        self, caller: TelemetryClient, subscriptions: Sequence[Subscription], now_ms: float
    ) -> Subscribed | None:
        """Returns the metrics that this client must push from now on, or None if the client asks too early."""
        instance = self._instance(caller, subscriptions, now_ms)
        again = instance.error in (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        if not instance.may_ask(now_ms) and not again:
            return None
        instance.error = ErrorCode.NONE
        return instance.subscribed

    async def push(
        self,
        caller: TelemetryClient,
        subscriptions: Sequence[Subscription],
        subscription_id: int,
        codec: int,
        metrics: bytes,
        *,
        terminating: bool,
        now_ms: float,
    ) -> int:
        """Returns the error code. A client's last push may come early. A thread decompresses pushes and hands them to the
        receiver, one by one. On the event loop, 16 MB would take as long as fifty requests."""
        if caller.instance_id in RESERVED:
            return ErrorCode.INVALID_REQUEST
        instance = self._instance(caller, subscriptions, now_ms)
        instance.error = self._refusal(instance, subscription_id, codec, metrics, terminating, now_ms)
        instance.terminating = terminating
        if instance.error == ErrorCode.NONE and metrics:
            received = self._threads.submit(self._receive, caller, codec, metrics, terminating)
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

    def _receive(self, caller: TelemetryClient, codec: int, metrics: bytes, terminating: bool) -> ErrorCode:
        try:
            otlp = bytes(decompress(Codec(codec), metrics, max_bytes=INFLATION * self.max_bytes))
            if self._receiver is not None and self._receiver.enabled:
                self._receiver.receive(PushedMetrics(caller.instance_id, caller.client_id, otlp, terminating))
        except (CorruptRecord, RecordTooLarge, InvalidRecord):
            return ErrorCode.INVALID_RECORD
        return ErrorCode.NONE

    # --- instances ----------------------------------------------------------------------------------------------------
    def _instance(self, caller: TelemetryClient, subscriptions: Sequence[Subscription], now_ms: float) -> _Instance:
        """The instance in memory, or a new one. Changed subscriptions also make a new instance, so that the client may ask at
        once."""
        if not self._is_known(caller, subscriptions, now_ms):
            self._begin(caller, subscriptions, run_steps(fitting(subscriptions, caller.known())), now_ms)
        instance = self._instances[caller.instance_id]
        self._instances.move_to_end(caller.instance_id)
        instance.heard_ms = now_ms
        return instance

    def _is_known(self, caller: TelemetryClient, subscriptions: Sequence[Subscription], now_ms: float) -> bool:
        instance = self._instances.get(caller.instance_id)
        return instance is not None and instance.subscriptions == subscriptions and not instance.is_stale(now_ms)

    def _begin(
        self,
        caller: TelemetryClient,
        subscriptions: Sequence[Subscription],
        matching: Sequence[Subscription],
        now_ms: float,
    ) -> None:
        instance = _Instance(_subscribed(caller, matching), subscriptions)
        instance.heard_ms = now_ms
        self._instances[caller.instance_id] = instance
        self._instances.move_to_end(caller.instance_id)
        caller.client.left = functools.partial(self._forget, caller.instance_id)
        if len(self._instances) > self._most:
            self._instances.popitem(last=False)

    def _forget(self, instance_id: bytes) -> None:
        self._instances.pop(instance_id, None)


def _subscribed(caller: TelemetryClient, matching: Sequence[Subscription]) -> Subscribed:
    names = dict.fromkeys(name for each in matching for name in each.metrics)
    metrics = (EVERYTHING,) if EVERYTHING in names else tuple(names)
    interval = min((DEFAULT_INTERVAL_MS, *(each.interval_ms for each in matching)))
    number = zlib.crc32("\0".join((*sorted(metrics), str(interval))).encode() + caller.instance_id)
    return Subscribed(number - ((number & 0x80000000) << 1), interval, metrics)
