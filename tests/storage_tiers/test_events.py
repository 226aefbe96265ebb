"""Events have two forms, no field from outside can break a log line, and repeated events are rate-limited."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from storage_tiers import events
from storage_tiers.errors import StorageError, TierUnavailable
from storage_tiers.types import TopicPartition

log = logging.getLogger("tests.events")


@pytest.fixture(autouse=True)
def _the_root_logger_as_it_was() -> Iterator[None]:
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


def said(form: str, level: int = logging.INFO) -> io.StringIO:
    stream = io.StringIO()
    events.set_up(level, form, stream)
    return stream


def test_both_formats_say_the_same() -> None:
    text, lines = io.StringIO(), io.StringIO()
    for form, stream in (("text", text), ("json", lines)):
        events.set_up(logging.INFO, form, stream)
        events.warning(
            log, "offload.finished", partition=TopicPartition("orders", 3), bytes=12, ms=1.5, clean=True, to=None
        )
    told = json.loads(lines.getvalue())
    when = told.pop("time")
    assert told == {
        "level": "WARN",
        "logger": "tests.events",
        "event": "offload.finished",
        "topic": "orders",
        "partition": 3,
        "bytes": 12,
        "ms": 1.5,
        "clean": True,
        "to": None,
    }
    when_too, line = text.getvalue().split(" ", 1)
    assert line == ("WARN tests.events offload.finished topic=orders partition=3 bytes=12 ms=1.5 clean=true to=null\n")
    assert len(when) == len(when_too) == len("2026-03-01T10:20:30.456Z") and when.endswith("Z")


@pytest.mark.parametrize("evil", ["a\nb", "\x1b[2J", "x\u2028y", "two words", 'say "no"', "", "é"])
def test_a_value_neither_ends_its_line_nor_reaches_a_terminal(evil: str) -> None:
    for form in events.FORMS:
        stream = said(form)
        events.info(log, "request.refused", client_id=evil)
        line = stream.getvalue()
        assert line.count("\n") == 1 and line.isascii() and "\x1b" not in line
        quoted = json.loads(line)["client_id"] if form == "json" else json.loads(line.split("client_id=", 1)[1])
        assert quoted == evil


def test_a_long_value_is_cut() -> None:
    stream = said("json")
    events.info(log, "request.refused", error=StorageError("x" * 5000))
    assert len(json.loads(stream.getvalue())["error"]) == events.LONGEST_TEXT


def test_a_defect_has_its_traceback() -> None:
    try:
        raise ZeroDivisionError("a bug")
    except ZeroDivisionError as defect:
        text = said("text")
        events.error(log, "request.defect", defect=defect)
        lines = said("json")
        events.error(log, "request.defect", defect=defect)
    first, *rest = text.getvalue().splitlines()
    assert first.endswith("ERROR tests.events request.defect")
    assert all(line.startswith("    ") for line in rest) and "ZeroDivisionError: a bug" in rest[-1]
    assert lines.getvalue().count("\n") == 1 and "a bug" in json.loads(lines.getvalue())["traceback"]


def test_messages_of_libraries_are_events_named_message() -> None:
    stream = said("json")
    log.error("%s happened\nhere", "it")
    told = json.loads(stream.getvalue())
    assert (told["event"], told["message"], told["level"]) == ("message", "it happened\nhere", "ERROR")


def test_levels_hold_for_events() -> None:
    stream = said("text", logging.WARNING)
    events.info(log, "topic.created", topic="t")
    assert stream.getvalue() == ""


def test_events_that_strangers_cause_are_bounded() -> None:
    stream = said("json")
    for _ in range(100):
        events.provoked(log, "connection.refused", by="10.0.0.1", client="10.0.0.1:5")
    events.provoked(log, "connection.refused", by="10.0.0.2", client="10.0.0.2:5")
    clients = [json.loads(line)["client"] for line in stream.getvalue().splitlines()]
    assert clients == ["10.0.0.1:5"] * 10 + ["10.0.0.2:5"]


def test_the_next_event_carries_the_number_omitted() -> None:
    seldom = events.RateLimit(burst=2, window_s=10, keys=2)
    assert [seldom.allows("a", now) for now in (0, 1, 2, 3)] == [0, 0, None, None]
    assert seldom.allows("a", 10) == 2
    assert seldom.allows("a", 11) == 0, "logged once"
    assert seldom.allows("b", 11) == 0
    assert [seldom.allows(key, 12) for key in "cde"] == [0, 0, None], (
        "of more things than are remembered all count as one"
    )
    assert seldom.allows("a", 2) == 0, "a clock that was set back delays nothing"


def test_a_trouble_is_logged_when_it_begins_changes_and_ends() -> None:
    troubles = events.Troubles(most=2)
    assert [troubles.begins("p", TierUnavailable(str(n))) for n in range(3)] == [True, False, False]
    assert troubles.begins("p", StorageError("full"))
    assert troubles.ends("p") is StorageError
    assert troubles.ends("p") is None
    assert [troubles.begins(of, StorageError("")) for of in "abca"] == [True, True, True, True], (
        "the oldest was forgotten"
    )


@pytest.mark.parametrize("form", events.FORMS)
def test_a_processs_own_fields_are_in_every_event(form: str) -> None:
    stream = io.StringIO()
    events.set_up(logging.INFO, form, stream, own={"node": 7})
    events.info(log, "some.thing", bytes=1)
    logging.getLogger("a.library").warning("text")
    for line in stream.getvalue().splitlines():
        assert json.loads(line)["node"] == 7 if form == "json" else line.endswith(" node=7")
    assert len(stream.getvalue().splitlines()) == 2
