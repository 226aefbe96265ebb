"""Who may push metrics, when, and what is answered; rules as in Kafka's ClientMetricsManager."""

from __future__ import annotations

import cramjam
import pytest

from kafka_gateway.telemetry import NOBODY, PushedMetrics, Subscription, Telemetry
from storage_tiers.errors import InvalidRecord

ONE, TWO = bytes(15) + b"\1", bytes(15) + b"\2"
MAX_BYTES = 1000


class Kept:
    def __init__(self) -> None:
        self.enabled = True
        self.pushed: list[PushedMetrics] = []

    def receive(self, pushed: PushedMetrics) -> None:
        if pushed.otlp == b"bad":
            raise InvalidRecord("bad")
        self.pushed.append(pushed)


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def telemetry(kept: Kept) -> Telemetry:
    return Telemetry(kept, max_bytes=MAX_BYTES)


def push(
    telemetry: Telemetry, number: int, *, codec: int = 0, metrics: bytes = b"x", now_ms: float = 0, **rest: bool
) -> int:
    terminating = rest.get("terminating", False)
    return telemetry.push(ONE, "c", number, codec, metrics, terminating=terminating, now_ms=now_ms)


def test_the_shortest_interval_and_all_names_of_what_fits(telemetry: Telemetry) -> None:
    subscriptions = [
        Subscription(["a.", "b."], 5000, [("client_id", "prod.*")]),
        Subscription(["b.", "c."], 700, [("client_id", "producer"), ("client_instance_id", "A+AQ")]),
        Subscription(["d."], 100, [("client_id", "other")]),
        Subscription([], 100, []),
    ]
    subscribed = telemetry.subscribe(ONE, "producer", subscriptions)
    assert (subscribed.metrics, subscribed.interval_ms) == (("a.", "b.", "c."), 700)
    assert telemetry.subscribe(TWO, "producer", subscriptions).metrics == ("a.", "b.")
    assert telemetry.subscribe(TWO, "nobody", subscriptions)[2:] == (300_000, ())
    everything = Subscription(["*"], 9000, [])
    assert telemetry.subscribe(ONE, "producer", [*subscriptions, everything]).metrics == ("*",)


def test_another_subscription_has_another_number(telemetry: Telemetry) -> None:
    first = telemetry.subscribe(ONE, "c", [Subscription(["a."], 500, [])]).subscription_id
    assert telemetry.subscribe(ONE, "c", [Subscription(["a."], 500, [])]).subscription_id == first
    assert telemetry.subscribe(ONE, "c", [Subscription(["a."], 600, [])]).subscription_id != first
    assert -(2**31) <= first < 2**31


@pytest.mark.parametrize(("codec", "pack"), [(0, bytes), (1, cramjam.gzip.compress), (4, cramjam.zstd.compress)])
def test_what_is_pushed_is_received(telemetry: Telemetry, kept: Kept, codec: int, pack: object) -> None:
    number = telemetry.subscribe(ONE, "c", []).subscription_id
    data = bytes(pack(b"some metrics"))  # type: ignore[operator]
    assert push(telemetry, number, codec=codec, metrics=data) == 0
    assert kept.pushed == [PushedMetrics(ONE, "c", b"some metrics", False)]


def test_what_may_not_be_pushed(telemetry: Telemetry, kept: Kept) -> None:
    number = telemetry.subscribe(ONE, "c", [Subscription(["*"], 100, [])]).subscription_id
    assert telemetry.push(NOBODY, "c", number, 0, b"", terminating=False, now_ms=0) == 42
    assert telemetry.push(TWO, "c", number, 0, b"", terminating=False, now_ms=0) == 117
    assert push(telemetry, number + 1, now_ms=1000) == 117
    assert push(telemetry, number, codec=9, now_ms=2000) == 76
    assert push(telemetry, number, metrics=bytes(MAX_BYTES + 1), now_ms=3000) == 118
    assert push(telemetry, number, metrics=b"bad", now_ms=4000) == 87
    assert push(telemetry, number, codec=1, metrics=b"no gzip", now_ms=5000) == 87
    assert push(telemetry, number, codec=4, metrics=bytes(cramjam.zstd.compress(bytes(1 << 20))), now_ms=6000) == 87
    assert push(telemetry, number, now_ms=6099) == 89
    assert push(telemetry, number, now_ms=6100) == 0
    assert len(kept.pushed) == 1


def test_a_last_push_may_come_early_and_is_the_last(telemetry: Telemetry, kept: Kept) -> None:
    number = telemetry.subscribe(ONE, "c", []).subscription_id
    assert push(telemetry, number) == 0
    assert push(telemetry, number, terminating=True) == 0
    assert push(telemetry, number, terminating=True) == 117
    assert [each.terminating for each in kept.pushed] == [False, True]
    assert len(telemetry) == 0


def test_the_last_heard_of_are_remembered(kept: Kept) -> None:
    telemetry = Telemetry(kept, max_bytes=MAX_BYTES, instances=2)
    for instance in (ONE, TWO, ONE, bytes(16)[:-1] + b"\3"):
        number = telemetry.subscribe(instance, "c", []).subscription_id
    assert len(telemetry) == 2
    assert telemetry.push(TWO, "c", number, 0, b"", terminating=False, now_ms=0) == 117


def test_without_a_receiver_nothing_is_kept(kept: Kept) -> None:
    kept.enabled = False
    telemetry = Telemetry(kept, max_bytes=MAX_BYTES)
    assert not telemetry.enabled
    assert push(telemetry, telemetry.subscribe(ONE, "c", []).subscription_id) == 0
    assert kept.pushed == []
    assert not Telemetry(None, max_bytes=1).enabled
