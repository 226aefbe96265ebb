"""docs/configs.md matches the registry exactly."""

from __future__ import annotations

from service.configs.broker_keys import BROKER_KEYS
from service.configs.generate_docs import PAGE, render
from service.configs.topic_keys import TOPIC_KEYS


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "the registry has changed: run `make docs`"


def test_every_key_has_one_row() -> None:
    rows = [line for line in render().splitlines() if line.startswith("| `")]
    of_topics = [row for row in rows if row.count(" | ") == 5]
    assert len(of_topics) == sum(not key.hidden for registry in (TOPIC_KEYS, BROKER_KEYS) for key in registry)
    assert all(row.endswith(("| honoured |", " |")) for row in rows)
