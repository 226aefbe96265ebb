"""Our recorded answers wherever the tables allow any: they must not change.

`pinned.json` has, by session, step and place, each answer and the versions of the session's API that give it.
`make differential ARGS=--write-counts` rewrites it; its changes are reviewed like code.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from tests.differential.compare import Difference, Leaf, Outcome
from tests.differential.peer import Exchange

PATH = Path(__file__).parent / "pinned.json"
#: session -> step -> place -> answer, as JSON -> versions
Pinned: TypeAlias = dict[str, dict[str, dict[str, dict[str, list[int]]]]]


def read() -> Pinned:
    found: Pinned = json.loads(PATH.read_text())
    return found


def write(pinned: Pinned) -> None:
    PATH.write_text(json.dumps(pinned, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def collected(outcomes: Iterable[tuple[str, int, Outcome]]) -> Pinned:
    """The answers to record, from (session, version, outcome) rows."""
    found: Pinned = {}
    for session, version, outcome in outcomes:
        for free in outcome.free:
            places = found.setdefault(session, {}).setdefault(_step(free.exchange), {})
            answers = places.setdefault(_general(free.leaf.place, session, version), {})
            answers.setdefault(_general(_text(free.leaf.tidelog), session, version), []).append(version)
    return found


def strayed(
    pinned: Pinned, session: str, version: int, outcome: Outcome, asked: Iterable[Exchange]
) -> list[Difference]:
    """Differences where our answer is not the recorded one, none is recorded, or ours now equals Kafka's."""
    found = []
    free_places = {(_step(free.exchange), _general(free.leaf.place, session, version)) for free in outcome.free}
    for exchange in asked:
        for place, answers in pinned.get(session, {}).get(_step(exchange), {}).items():
            said = next((text for text, versions in answers.items() if version in versions), None)
            if said is not None and (_step(exchange), place) not in free_places:
                found.append(Difference(exchange, Leaf(place, f"{place} (kafka: as tidelog was)", said, "as Kafka")))
    for free in outcome.free:
        answers = (
            pinned.get(session, {}).get(_step(free.exchange), {}).get(_general(free.leaf.place, session, version), {})
        )
        if version not in answers.get(_general(_text(free.leaf.tidelog), session, version), ()):
            said = next((text for text, versions in answers.items() if version in versions), "nothing is written down")
            leaf = Leaf(free.leaf.path, f"{free.leaf.place} (kafka: as tidelog was)", said, free.leaf.tidelog)
            found.append(Difference(free.exchange, leaf))
    return found


def gone(pinned: Pinned, now: Pinned) -> list[str]:
    """One line for each recorded place that the tables no longer leave open."""
    return [
        f"{session}: {step}: {place}"
        for session, steps in pinned.items()
        for step, places in steps.items()
        for place in places
        if place not in now.get(session, {}).get(step, {})
    ]


def _step(exchange: Exchange) -> str:
    return f"{exchange.label} ({exchange.api})"


def _general(text: str, session: str, version: int) -> str:
    """Removes the version from topic names, which begin with the session and its version."""
    return text.replace(f"{session}-v{version}", session)


def _text(answer: Any) -> str:
    return json.dumps(_plain(answer), ensure_ascii=False, sort_keys=True)


def _plain(answer: Any) -> Any:
    if isinstance(answer, Mapping):
        return {key: _plain(value) for key, value in answer.items()}
    if isinstance(answer, list):
        return [_plain(value) for value in answer]
    return answer if isinstance(answer, str | int | float | bool | None) else repr(answer)
