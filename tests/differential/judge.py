"""Runs sessions on both brokers, once each, and compares their responses.

A session is a function of a peer and a version, registered by `session`. It runs for every version of its API that we
serve, or for the versions it names, on brokers with default configs or those of its `Setup`. Sessions of APIs that we do
not serve do not run; `UNSUPPORTED_APIS` must name those APIs.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import pkgutil
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from kafka_gateway.registry import APIS
from tests.differential import pinned
from tests.differential import sessions as session_modules
from tests.differential.compare import Outcome, Side, compare
from tests.differential.peer import Exchange, Peer
from tests.differential.routed_peer import RoutedPeer
from tests.differential.rules import EXPECTED, NORMALISED
from tests.differential.rules_of_three import EXPECTED_OF_THREE, NORMALISED_OF_THREE, OF_ONE_BROKER

Script = Callable[[Peer, int], None]

#: The APIs that we serve to every client, by kio's name: API key, and the lowest and highest version served.
SERVED = {
    re.sub(r"(?<=[a-z])(?=[A-Z])", "_", api.name).lower(): (api.key, api.served_from, api.highest) for api in APIS
}


class Setup(enum.Enum):
    """How both brokers are configured."""

    PLAIN = "default configs"
    RECEIVER = "metric.reporters names one that takes clients' metrics"
    GROUPS = "groups wait for no further members; transactions that are too old are looked for often"
    REPLICAS = "the coordinators' topics are to have three replicas"
    THREE = "three brokers, whose groups wait for no further members"
    TIERED = "with a tier: Kafka's LocalTieredStorage, tidelog's directory"


#: Setups whose sessions run with one broker alone, and the reason.
OF_ONE_SETUP = {
    Setup.RECEIVER: "clients' metrics stay with the broker that they are sent to",
    Setup.REPLICAS: "it is about fewer brokers than replicas",
    Setup.TIERED: "Kafka's tier for tests keeps its metadata in one more topic; a broker's tier does not depend on the others",
}


@dataclasses.dataclass(frozen=True)
class Session:
    name: str
    api: str
    version: int
    script: Script
    setup: Setup = Setup.PLAIN

    def __str__(self) -> str:
        return f"{self.name}-v{self.version}"


@dataclasses.dataclass(frozen=True)
class Brokers:
    """One side's brokers: `addresses` by id. `restart` stops a broker cleanly and starts it with the same data and address."""

    addresses: Mapping[int, str]
    restart: Callable[[int], object]

    def peer(self, name: str, prefix: str) -> Peer:
        if len(self.addresses) > 1:
            return RoutedPeer(name, self.addresses, prefix, self.restart)
        ((broker, address),) = self.addresses.items()
        return Peer(name, address, prefix, lambda: self.restart(broker))

    def ports(self) -> dict[int, int]:
        return {broker: int(address.rpartition(":")[2]) for broker, address in self.addresses.items()}


@dataclasses.dataclass(frozen=True)
class Heard:
    """Both brokers' responses in one session."""

    kafka: Sequence[Exchange]
    tidelog: Sequence[Exchange]
    sides: tuple[Side, Side]


_REGISTERED: list[Session] = []


def session(
    api: str, *, versions: Sequence[int] | None = None, setup: Setup = Setup.PLAIN
) -> Callable[[Script], Script]:
    def register(script: Script) -> Script:
        name = f"{api}-{script.__name__}".replace("_", "-")
        if api in SERVED:
            _, low, high = SERVED[api]
            chosen = range(low, high + 1) if versions is None else versions
            _REGISTERED.extend(Session(name, api, version, script, setup) for version in chosen)
        return script

    return register


@cache
def _every_session() -> tuple[Session, ...]:
    for module in pkgutil.iter_modules(session_modules.__path__):
        importlib.import_module(f"{session_modules.__name__}.{module.name}")
    return tuple(_REGISTERED)


@cache
def all_sessions() -> tuple[Session, ...]:
    """The sessions with one broker."""
    return tuple(session for session in _every_session() if session.setup is not Setup.THREE)


@cache
def sessions_of_three() -> tuple[Session, ...]:
    """The sessions with three brokers: their own, and those with one broker in the lowest and highest version of each API."""
    versions: dict[str, list[int]] = {}
    for each in all_sessions():
        versions.setdefault(each.name, []).append(each.version)
    again = (
        dataclasses.replace(each, setup=Setup.THREE)
        for each in all_sessions()
        if each.setup not in OF_ONE_SETUP
        and each.version in (versions[each.name][0], versions[each.name][-1])
        and each.name not in OF_ONE_BROKER
    )
    return (*(session for session in _every_session() if session.setup is Setup.THREE), *again)


class Judge:
    """`brokers` returns Kafka and tidelog in a setup, both initially empty; it is called once per setup."""

    def __init__(self, brokers: Callable[[Setup], tuple[Brokers, Brokers]]) -> None:
        self._brokers = cache(brokers)
        self._heard: dict[Session, Heard] = {}
        self._outcomes: dict[Session, Outcome] = {}

    def heard(self, of: Session) -> Heard:
        if of not in self._heard:
            brokers = self._brokers(of.setup)
            (kafka, left), (tidelog, right) = (
                self._play(of, name, side) for name, side in zip(("kafka", "tidelog"), brokers, strict=True)
            )
            self._heard[of] = Heard(kafka, tidelog, (left, right))
        return self._heard[of]

    def outcome(self, of: Session) -> Outcome:
        if of not in self._outcomes:
            self._outcomes[of] = judged(of, self.heard(of))
        return self._outcomes[of]

    def _play(self, of: Session, name: str, brokers: Brokers) -> tuple[list[Exchange], Side]:
        peer = brokers.peer(name, str(of))
        try:
            of.script(peer, of.version)
        finally:
            peer.close_connection()
        labels = Counter((exchange.api, exchange.version, exchange.label) for exchange in peer.transcript)
        twice = [label for label, times in labels.items() if times > 1]
        if twice or not labels:
            raise ValueError(f"{of}: steps that stand twice, or none at all: {twice}")
        side = Side(peer.host, brokers.ports(), peer.started_ms, time.time_ns() // 1_000_000, peer.topics)
        return peer.transcript, side


def judged(of: Session, heard: Heard) -> Outcome:
    """Compares a session; where the tables allow us any answer, ours must be the recorded one."""
    rules, rows = (NORMALISED, EXPECTED) if of.setup is not Setup.THREE else (NORMALISED_OF_THREE, EXPECTED_OF_THREE)
    outcome = compare(of.name, heard.kafka, heard.tidelog, heard.sides, rules, rows)
    outcome.differences += pinned.strayed(_pinned(), of.name, of.version, outcome, heard.kafka)
    return outcome


_pinned = cache(pinned.read)
