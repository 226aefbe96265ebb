"""The table of events in docs/operations.md matches the code: every name, its levels, its fields."""

from __future__ import annotations

import re
from collections import defaultdict

from tests.service.observability.event_calls import ROOT, event_calls

PAGE = ROOT / "docs" / "operations.md"
ROW = re.compile(r"\| `([a-z_]+(?:\.[a-z_]+)?)` \| ([A-Z, a-z]+) \| (.*?) \| (.+) \|")
#: Fields that the log formats write themselves.
TAKEN = {"time", "level", "logger", "event", "traceback", "left_out", "node"}


def documented() -> dict[str, tuple[set[str], set[str]]]:
    section = PAGE.read_text().partition("## Logs")[2].partition("\n## ")[0]
    rows = [row for line in section.splitlines() if (row := ROW.fullmatch(line))]
    return {row[1]: (set(row[2].split(", ")), set(re.findall(r"`(\w+)`", row[3]))) for row in rows}


def test_the_table_lists_every_event_and_no_other() -> None:
    said: dict[str, tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
    for call in event_calls():
        said[call.name][0].update(call.levels)
        said[call.name][1].update(call.fields)
    said["message"] = ({"any"}, {"message"})
    table = documented()
    assert len(table) > 50
    assert table == dict(said)


def test_no_field_has_a_name_that_the_formats_use() -> None:
    assert not [(call.where, call.fields & TAKEN) for call in event_calls() if call.fields & TAKEN]


def test_names_of_events_and_fields_have_one_form() -> None:
    assert all(re.fullmatch(r"[a-z_]+\.[a-z_]+", call.name) for call in event_calls())
