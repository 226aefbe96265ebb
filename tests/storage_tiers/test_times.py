"""The SDK, the command line and Spark's options read one text as one time: UTC if it names no zone, rounded up to a
millisecond."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from grpc_api.sdk.values import checked_start, start_ms
from pyspark_tidelog.options import parse_options
from service.cli.client.positions import parse_position
from storage_tiers.times import first_ms, parse_time

JULY_MS = 1_372_636_800_000


@pytest.fixture(autouse=True)
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose zone is not UTC."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def by_sdk(text: str) -> int:
    moment = checked_start(text)
    assert isinstance(moment, datetime)
    return start_ms(moment)


def by_command_line(text: str) -> int:
    return parse_position(text, 0, "--from").value


def by_spark(text: str) -> int | None:
    return parse_options({"store": "/bucket", "topics": "a", "startingTimestamp": text}).starting.timestamp


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2013-07-01", JULY_MS),
        ("2013-07-01T00:00", JULY_MS),
        ("2013-07-01 00:00:00", JULY_MS),
        ("2013-07-01T00:00:00Z", JULY_MS),
        ("2013-07-01T02:00:00+02:00", JULY_MS),
        ("2013-06-30T20:00:00-04:00", JULY_MS),
        ("2013-07-01T00:00:00.0001", JULY_MS + 1),
    ],
)
def test_a_text_means_one_time_wherever_it_is_written(text: str, ms: int) -> None:
    assert first_ms(parse_time(text)) == by_sdk(text) == by_command_line(text) == by_spark(text) == ms


def test_a_time_before_1970_is_the_beginning_where_negative_times_mean_the_ends() -> None:
    assert first_ms(parse_time("1969-12-31")) == by_spark("1969-12-31") == -86_400_000
    assert by_sdk("1969-12-31") == by_command_line("1969-12-31") == 0
