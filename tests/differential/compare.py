"""Compares two transcripts field by field. Pure: trees in, differences and counts out.

First each side is normalised alone: values that a broker chooses freely (ids, times, texts) become comparable tokens: the
same token for the same id, `<now>` for a time within the run, `<text>` for a text. Then both trees are walked together, and
every leaf is equal, or an intended difference, or a failure. No leaf is skipped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from tests.differential.message_trees import Tree
from tests.differential.peer import Exchange
from tests.differential.rules import ABSENT, ANY, Kind, Normalised, OnPurpose

#: Milliseconds by which a broker's clock may differ from this process's.
CLOCK_SLACK_MS = 5_000
_NO_ID = (None, -1, 0, "", "00000000-0000-0000-0000-000000000000")


@dataclasses.dataclass(frozen=True)
class Side:
    """A peer's data for normalisation. `ports`: the peer's ports by broker id; `until_ms`: the session's end (Unix ms);
    `known`: names by id."""

    host: str
    ports: Mapping[int, int]
    started_ms: int
    until_ms: int
    known: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One leaf of both responses. Rules refer to `path`, which has no indexes; `place` has them, for people."""

    path: str
    place: str
    kafka: Tree
    tidelog: Tree


@dataclasses.dataclass(frozen=True)
class Difference:
    exchange: Exchange
    leaf: Leaf

    def __str__(self) -> str:
        of = self.exchange
        return (
            f"{of.api} v{of.version}, {of.label}: {self.leaf.place}\n"
            f"    kafka   {_short(self.leaf.kafka)}\n    tidelog {_short(self.leaf.tidelog)}"
        )


@dataclasses.dataclass
class Outcome:
    """`compared`: (api, version, path) of each comparison; `free`: leaves whose value on our side the tables leave open,
    and which `pinned.py` compares with its recorded values."""

    compared: list[tuple[str, int, str]] = dataclasses.field(default_factory=list)
    differences: list[Difference] = dataclasses.field(default_factory=list)
    normalised: set[Normalised] = dataclasses.field(default_factory=set)
    on_purpose: set[OnPurpose] = dataclasses.field(default_factory=set)
    free: list[Difference] = dataclasses.field(default_factory=list)


def compare(
    session: str,
    kafka: Sequence[Exchange],
    tidelog: Sequence[Exchange],
    sides: tuple[Side, Side],
    normalised: Iterable[Normalised],
    on_purpose: Iterable[OnPurpose],
) -> Outcome:
    """Compares one session. Raises ValueError unless both transcripts have the same steps."""
    if [(e.api, e.version, e.label) for e in kafka] != [(e.api, e.version, e.label) for e in tidelog]:
        raise ValueError(f"{session}: the transcripts have different steps")
    rules, rows = tuple(normalised), tuple(on_purpose)
    outcome = Outcome()
    left, right = Normaliser(sides[0], rules), Normaliser(sides[1], rules)
    for ours, theirs in zip(tidelog, kafka, strict=True):
        for leaf in leaves(left.answer(theirs), right.answer(ours)):
            row = None if leaf.kafka == leaf.tidelog else _purpose(rows, session, theirs, leaf)
            if row is not None:
                outcome.on_purpose.add(row)
                if row.tidelog is ANY:
                    outcome.free.append(Difference(theirs, leaf))
                continue
            outcome.compared.append((theirs.api, theirs.version, leaf.path))
            if leaf.kafka != leaf.tidelog:
                outcome.differences.append(Difference(theirs, leaf))
    outcome.normalised = left.used | right.used
    return outcome


def _purpose(rows: Iterable[OnPurpose], session: str, exchange: Exchange, leaf: Leaf) -> OnPurpose | None:
    for row in rows:
        if (
            fnmatchcase(exchange.api, row.api)
            and fnmatchcase(leaf.path, row.path)
            and fnmatchcase(f"{session}: {exchange.label}", row.where)
            and row.kafka in (ANY, leaf.kafka)
            and row.tidelog in (ANY, leaf.tidelog)
        ):
            return row
    return None


# --- walking ----------------------------------------------------------------------------------------------------------
def leaves(kafka: Tree, tidelog: Tree, path: str = "", place: str = "") -> Iterator[Leaf]:
    """Walks both trees together. A value on one side only is one leaf with `ABSENT` on the other."""
    if path == "" and ("connection" in kafka) != ("connection" in tidelog):
        sides = [tree.get("connection", "answered") for tree in (kafka, tidelog)]
        yield Leaf("connection", "connection", sides[0], sides[1])
    elif isinstance(kafka, dict) and isinstance(tidelog, dict):
        for name in [*kafka, *(name for name in tidelog if name not in kafka)]:
            longer = f"{path}.{name}" if path else name
            where = f"{place}.{name}" if place else name
            yield from leaves(kafka.get(name, ABSENT), tidelog.get(name, ABSENT), longer, where)
    elif isinstance(kafka, list) and isinstance(tidelog, list):
        yield Leaf(path + ".length", place + ".length", len(kafka), len(tidelog))
        for index in range(max(len(kafka), len(tidelog))):
            pair = [tree[index] if index < len(tree) else ABSENT for tree in (kafka, tidelog)]
            yield from leaves(pair[0], pair[1], path, f"{place}[{index}]")
    else:
        yield Leaf(path, place, kafka, tidelog)


# --- normalising ------------------------------------------------------------------------------------------------------
class Normaliser:
    """Normalises one peer's transcript in order: ids are numbered as they appear."""

    def __init__(self, side: Side, rules: Sequence[Normalised]) -> None:
        self._side = side
        self._rules = rules
        self._numbers: dict[str, dict[Any, str]] = {}
        self.used: set[Normalised] = set()

    def answer(self, exchange: Exchange) -> Tree:
        rules = [rule for rule in self._rules if fnmatchcase(exchange.api, rule.api)]
        return self._tree(exchange.answer, "", rules)

    def _tree(self, value: Tree, path: str, rules: Sequence[Normalised]) -> Tree:
        rule = next((rule for rule in rules if fnmatchcase(path, rule.path)), None)
        if isinstance(value, list):
            if rule is not None and rule.kind is Kind.ANY_ORDER:
                self.used.add(rule)
                return self._by_key(value, rule.key, path, rules)
            return [self._tree(item, path, rules) if isinstance(item, dict | list) else item for item in value]
        if isinstance(value, dict):
            return {k: self._tree(v, f"{path}.{k}" if path else k, rules) for k, v in value.items()}
        if rule is None or rule.kind is Kind.ANY_ORDER:
            return value
        self.used.add(rule)
        return self._leaf(value, rule)

    def _by_key(self, rows: list[Tree], key: str, path: str, rules: Sequence[Normalised]) -> Tree:
        """The rows as a dict by the field `key` (`a+b`: two fields); repeated keys get a number appended."""
        found: dict[str, Tree] = {}
        for row in sorted(rows, key=lambda row: self._key_of(row, key)):
            name = plain = self._key_of(row, key)
            times = 1
            while name in found:
                times += 1
                name = f"{plain} #{times}"
            found[name] = row
        return {f"<{name}>": self._tree(row, f"{path}.<{name}>", rules) for name, row in found.items()}

    def _key_of(self, row: Tree, key: str) -> str:
        values = (row[name] for name in key.split("+") if row.get(name) is not None)
        return " ".join(str(self._side.known.get(value, value)) for value in values)

    def _leaf(self, value: Tree, rule: Normalised) -> Tree:
        if value is None:
            return None
        if rule.kind is Kind.TEXT:
            return "<text>" if value else value
        if rule.kind is Kind.IDENTITY:
            if value in _NO_ID:
                return value
            if value in self._side.known:
                return f"<{rule.key} of {self._side.known[value]}>"
            numbers = self._numbers.setdefault(rule.key, {})
            return numbers.setdefault(value, f"<{rule.key} {len(numbers) + 1}>")
        if rule.kind is Kind.WALL_CLOCK:
            near = self._side.started_ms - CLOCK_SLACK_MS <= value <= self._side.until_ms + CLOCK_SLACK_MS
            return "<now>" if near else value
        if rule.kind is Kind.OWN_ADDRESS:
            return self._own(value)
        if rule.kind is Kind.A_BROKER:
            return "<a broker>" if value in self._side.ports else value
        return "<positive>" if value > 0 else value

    def _own(self, value: Tree) -> Tree:
        """A host or a port of this side; with several brokers, the port shows the broker."""
        if value == self._side.host:
            return "<its own>"
        broker = next((broker for broker, port in self._side.ports.items() if port == value), None)
        if broker is None:
            return value
        return "<its own>" if len(self._side.ports) == 1 else f"<broker {broker}'s>"


def _short(value: Tree) -> str:
    text = repr(value)
    return text if len(text) <= 300 else text[:300] + "…"
