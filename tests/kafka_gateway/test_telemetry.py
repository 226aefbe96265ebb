"""Which clients may push metrics, when, and the responses they get, as in Kafka's ClientMetricsManager."""

from __future__ import annotations

import asyncio
import threading

import cramjam
import pytest

from kafka_gateway.client import ConnectedClient
from kafka_gateway.match_patterns import LONGEST_MATCHED, LONGEST_OF_THREE_REPEATS
from kafka_gateway.telemetry import (
    EXPIRY_MS,
    PushedMetrics,
    Subscribed,
    Subscription,
    Telemetry,
    TelemetryClient,
)
from storage_tiers.errors import InvalidRecord
from storage_tiers.turns import SLICE_S, TurnScheduler

ONE, TWO, THREE = (bytes(15) + bytes([number]) for number in (11, 12, 13))
MAX_BYTES = 1000


class Kept:
    def __init__(self) -> None:
        self.enabled = True
        self.pushed: list[PushedMetrics] = []

    def receive(self, pushed: PushedMetrics) -> None:
        if pushed.otlp == b"bad":
            raise InvalidRecord("bad")
        self.pushed.append(pushed)


class World:
    """A `Telemetry` with its subscriptions and a clock (ms)."""

    def __init__(self, kept: Kept, instances: int = 10) -> None:
        self.telemetry = Telemetry(kept, max_bytes=MAX_BYTES, instances=instances)
        self.subscriptions: list[Subscription] = []
        self.now_ms = 1000.0
        self.client = ConnectedClient("10.0.0.1", 999)

    def get(self, instance: bytes = ONE, client_id: str = "c") -> Subscribed | None:
        caller = TelemetryClient(instance, client_id, self.client)
        return self.telemetry.subscribe(caller, list(self.subscriptions), self.now_ms)

    def subscribed(self, instance: bytes = ONE, client_id: str = "c") -> Subscribed:
        found = self.get(instance, client_id)
        assert found is not None
        return found

    def push(
        self,
        number: int,
        *,
        instance: bytes = ONE,
        codec: int = 0,
        metrics: bytes = b"x",
        terminating: bool = False,
    ) -> int:
        caller = TelemetryClient(instance, "c", self.client)
        subscriptions = list(self.subscriptions)
        return asyncio.run(
            self.telemetry.push(
                caller, subscriptions, number, codec, metrics, terminating=terminating, now_ms=self.now_ms
            )
        )


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def world(kept: Kept) -> World:
    return World(kept)


def test_matching_subscriptions_give_the_shortest_interval_and_all_names(world: World) -> None:
    world.subscriptions = [
        Subscription(["a.", "b."], 5000, [("client_id", "prod.*")]),
        Subscription(["b.", "c."], 700, [("client_id", "producer"), ("client_instance_id", "A+Cw")]),
        Subscription(["d."], 100, [("client_id", "other")]),
    ]
    assert world.subscribed(ONE, "producer")[1:] == (700, ("a.", "b.", "c."))
    assert world.subscribed(TWO, "producer")[2] == ("a.", "b.")
    assert world.subscribed(THREE, "nobody")[1:] == (300_000, ())
    world.subscriptions.append(Subscription(["*"], 9000, []))
    assert world.subscribed(ONE, "producer")[2] == ("*",)


@pytest.mark.parametrize(
    ("what", "pattern", "fits"),
    [
        ("client_software_name", "lib.*", True),
        ("client_software_version", "2[.].*", False),
        ("client_source_address", "10[.].*", True),
        ("client_source_port", "99", False),
        ("client_source_port", "999", True),
    ],
)
def test_a_subscription_may_match_properties_of_the_connection(
    world: World, what: str, pattern: str, fits: bool
) -> None:
    world.client.software_name, world.client.software_version = "librdkafka", "1.2"
    world.subscriptions = [Subscription(["a."], 500, [(what, pattern)])]
    assert bool(world.subscribed().metrics) is fits


def test_a_very_long_text_fits_no_pattern(world: World) -> None:
    world.subscriptions = [Subscription(["a."], 500, [("client_id", ".*")])]
    assert world.subscribed(ONE, "x" * LONGEST_MATCHED).metrics == ("a.",)
    assert world.subscribed(TWO, "x" * (LONGEST_MATCHED + 1)).metrics == ()
    world.subscriptions = [Subscription(["a."], 500, [("client_id", ".*x.*x.*x")])]
    assert world.subscribed(ONE, "x" * LONGEST_OF_THREE_REPEATS).metrics == ("a.",)
    assert world.subscribed(TWO, "x" * (LONGEST_OF_THREE_REPEATS + 1)).metrics == ()


def test_another_subscription_has_another_number(world: World) -> None:
    world.subscriptions = [Subscription(["a."], 500, [])]
    first = world.subscribed().subscription_id
    world.now_ms += 500
    assert world.subscribed().subscription_id == first
    world.subscriptions = [Subscription(["a."], 600, [])]
    assert world.subscribed().subscription_id != first
    assert -(2**31) <= first < 2**31


def test_an_early_request_is_throttled_unless_the_subscription_changed(world: World) -> None:
    world.subscriptions = [Subscription(["a."], 500, [])]
    number = world.subscribed().subscription_id
    world.now_ms += 499
    assert world.get() is None
    world.subscriptions.append(Subscription(["b."], 500, []))
    assert world.subscribed().metrics == ("a.", "b.")
    world.now_ms += 1
    assert world.push(number) == 117
    assert world.subscribed().metrics == ("a.", "b.")


@pytest.mark.parametrize(("codec", "pack"), [(0, bytes), (1, cramjam.gzip.compress), (4, cramjam.zstd.compress)])
def test_pushed_metrics_are_received(world: World, kept: Kept, codec: int, pack: object) -> None:
    data = bytes(pack(b"some metrics"))  # type: ignore[operator]
    assert world.push(world.subscribed().subscription_id, codec=codec, metrics=data) == 0
    assert kept.pushed == [PushedMetrics(ONE, "c", b"some metrics", False)]


def test_pushes_that_are_refused(world: World, kept: Kept) -> None:
    world.subscriptions = [Subscription(["*"], 100, [])]
    number = world.subscribed().subscription_id
    for reserved in (bytes(16), bytes(15) + b"\1"):
        assert world.push(number, instance=reserved) == 42
    assert world.push(number, instance=TWO) == 117
    zeros = bytes(cramjam.zstd.compress(bytes(1 << 20)))
    for code, codec, metrics in (
        (76, 9, b"x"),
        (118, 0, bytes(MAX_BYTES + 1)),
        (87, 0, b"bad"),
        (87, 1, b"no gzip"),
        (87, 4, zeros),
    ):
        world.now_ms += 100
        assert world.push(number, codec=codec, metrics=metrics) == code
    world.now_ms += 99
    assert world.push(number) == 89
    world.now_ms += 1
    assert world.push(number + 1) == 117
    world.now_ms += 100
    assert world.push(number) == 0
    assert len(kept.pushed) == 1


def test_a_last_push_may_come_early_and_is_the_last(world: World, kept: Kept) -> None:
    number = world.subscribed().subscription_id
    assert world.push(number) == 0
    assert world.push(number, terminating=True) == 0
    assert world.push(number) == 42
    assert [each.terminating for each in kept.pushed] == [False, True]


def test_a_client_is_forgotten_with_its_connection(world: World) -> None:
    number = world.subscribed().subscription_id
    assert world.push(number, terminating=True) == 0
    assert world.client.left is not None
    world.client.left()
    assert len(world.telemetry) == 0
    assert world.push(number) == 0


def test_a_client_that_is_silent_for_long_is_another_one_afterwards(world: World) -> None:
    world.subscriptions = [Subscription(["*"], 100, [])]
    number = world.subscribed().subscription_id
    assert world.push(number, terminating=True) == 0
    world.now_ms += EXPIRY_MS - 1
    assert world.push(number) == 42
    world.now_ms += EXPIRY_MS
    assert world.push(number) == 0


def test_the_most_recently_active_clients_are_remembered(kept: Kept) -> None:
    world = World(kept, instances=2)
    for instance in (ONE, TWO):
        world.subscribed(instance)
    assert world.get(ONE) is None
    world.subscribed(THREE)
    assert len(world.telemetry) == 2
    assert world.get(ONE) is None
    assert world.get(TWO) is not None


def test_without_a_receiver_nothing_is_kept(world: World, kept: Kept) -> None:
    kept.enabled = False
    assert not world.telemetry.enabled
    assert world.push(world.subscribed().subscription_id) == 0
    assert kept.pushed == []
    assert not Telemetry(None, max_bytes=1).enabled


async def test_a_push_is_received_beside_the_loop(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """A push of 16 MB takes 50 ms to decompress, and seconds to parse."""
    may_end, world = threading.Event(), World(kept)
    receive = Kept.receive

    def slow(receiver: Kept, pushed: PushedMetrics) -> None:
        assert may_end.wait(30)
        receive(receiver, pushed)

    monkeypatch.setattr(Kept, "receive", slow)
    caller = TelemetryClient(ONE, "c", world.client)
    number = world.subscribed().subscription_id
    pushing = asyncio.ensure_future(
        world.telemetry.push(caller, [], number, 0, b"some metrics", terminating=False, now_ms=world.now_ms)
    )
    await asyncio.sleep(0)
    assert not pushing.done() and not kept.pushed
    may_end.set()
    assert await pushing == 0
    assert [each.otlp for each in kept.pushed] == [b"some metrics"]


async def test_patterns_of_a_new_client_are_matched_in_slices_and_once() -> None:
    world = World(Kept())
    now = 0.0

    def seconds() -> float:
        nonlocal now
        now += SLICE_S
        return now

    pairs = [("client_id", ".*")] * 50
    subscriptions = [Subscription(["a."], 100, pairs), Subscription(["b."], 200, [("client_id", "nobody")])]
    caller = TelemetryClient(ONE, "anybody", world.client)
    turns = 0

    def count() -> None:
        nonlocal turns
        turns += 1
        loop.call_soon(count)

    loop = asyncio.get_running_loop()
    loop.call_soon(count)
    turn = TurnScheduler(seconds).turn()
    await world.telemetry.know(caller, subscriptions, 0.0, turn)
    turn.leave()
    assert turns >= len(pairs)
    before = turns
    await world.telemetry.know(caller, list(subscriptions), 0.0, turn)
    assert turns == before
    found = world.telemetry.subscribe(caller, subscriptions, 0.0)
    assert found is not None and (list(found.metrics), found.interval_ms) == (["a."], 100)
