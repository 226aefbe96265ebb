"""The demo of `examples/flights`: its records match the table, its checks detect wrong answers, and a run succeeds."""

from __future__ import annotations

import io
import json
import math
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

from examples.flights import data
from examples.flights.consume import Found, ReadBack, ReadBackFailed, expected_at, kcat_command
from examples.flights.data import Delay, Flight
from examples.flights.demo import PARTITIONS, TOPIC, Demo, Disproved, Store, compare
from examples.flights.node import CommandFailed, running_node, tidelog
from examples.flights.spark_report import delays_from_bucket
from tests.spark.conftest import spark  # noqa: F401  (a fixture: the session that all Spark tests of a worker share)

SAMPLE = 5000


# --- the table ---------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def sample() -> list[Flight]:
    return data.flights(SAMPLE)


def test_the_table_is_whole() -> None:
    total = missing = 0
    for row in data.rows():
        total += 1
        missing += row["arr_delay"] in ("", "NA")
    assert (total, missing) == (data.FLIGHTS, data.WITHOUT_DELAY)


def test_a_record_is_the_row_keyed_by_carrier() -> None:
    first = next(data.rows())
    key, value, timestamp = data.record(first)
    assert key == b"UA"
    assert timestamp == 1357035300000  # 2013-01-01T10:15:00Z: 05:15 in New York
    fields = json.loads(value)
    assert list(fields) == list(first)
    assert fields["dep_time"] == 517
    assert fields["arr_delay"] == 11
    assert fields["tailnum"] == "N14228"
    assert fields["time_hour"] == "2013-01-01T10:00:00Z"


@pytest.mark.parametrize("missing", ["", "NA"])
def test_missing_values_are_null(missing: str) -> None:
    row = {**next(data.rows()), "arr_delay": missing, "tailnum": missing}
    fields = json.loads(data.record(row).value)
    assert fields["arr_delay"] is None
    assert fields["tailnum"] is None


def test_records_come_in_the_order_of_their_time(sample: list[Flight]) -> None:
    assert len(sample) == SAMPLE
    assert all(a.timestamp <= b.timestamp for a, b in pairwise(sample))
    assert {f.key for f in sample} == {row["carrier"].encode() for row in data.rows(SAMPLE)}


def test_progress_is_reported_for_every_row() -> None:
    told: list[int] = []
    data.flights(2345, told.append)
    assert sum(told) == 2345


def test_pandas_and_the_records_agree_on_the_sample(sample: list[Flight]) -> None:
    known: dict[str, list[int]] = {}
    count: dict[str, int] = {}
    for flight in sample:
        fields = json.loads(flight.value)
        count[fields["carrier"]] = count.get(fields["carrier"], 0) + 1
        if fields["arr_delay"] is not None:
            known.setdefault(fields["carrier"], []).append(fields["arr_delay"])
    found = {c: Delay(sum(k) / len(k), count[c], len(k)) for c, k in known.items()}
    compare(found, data.expected_delays(SAMPLE))


def test_every_carrier_has_a_name() -> None:
    names = data.airlines()
    assert names["B6"] == "JetBlue Airways"
    assert set(data.expected_delays(SAMPLE)) <= set(names)


# --- its checks --------------------------------------------------------------------------------------------------------
TABLE = {"AA": Delay(1.5, 3, 2), "BB": Delay(math.nan, 1, 0)}


def test_means_that_differ_by_rounding_alone_are_equal() -> None:
    compare({"AA": Delay(1.5 + 1e-12, 3, 2), "BB": Delay(math.nan, 1, 0)}, TABLE)


@pytest.mark.parametrize(
    "wrong",
    [
        {"AA": Delay(1.5, 3, 2)},
        {**TABLE, "AA": Delay(1.5001, 3, 2)},
        {**TABLE, "AA": Delay(1.5, 4, 2)},
        {**TABLE, "AA": Delay(1.5, 3, 3)},
        {**TABLE, "BB": Delay(0.0, 1, 0)},
    ],
)
def test_a_wrong_mean_or_count_is_reported(wrong: dict[str, Delay]) -> None:
    with pytest.raises(Disproved):
        compare(wrong, TABLE)


class Message:
    """The parts of a consumer's message that the check uses."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def error(self) -> None:
        return None

    def key(self) -> bytes:
        return b"AA"

    def value(self) -> bytes:
        return b"value"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset


@pytest.mark.parametrize("offsets", [(0, 2), (0, 0), (1,)])
def test_a_gap_or_a_repeat_is_reported(offsets: tuple[int, ...]) -> None:
    found = ReadBack()
    with pytest.raises(ReadBackFailed):
        for offset in offsets:
            found.take(Message(offset))  # type: ignore[arg-type]


def test_a_seek_finds_the_first_records_at_or_after_a_time_in_the_order_of_offsets() -> None:
    flights = [Flight(key, b"", time) for key, time in ((b"A", 5), (b"B", 6), (b"A", 9), (b"C", 7), (b"A", 8))]
    assert expected_at(flights, {b"A", b"C"}, 6, 2) == [
        Found(1, Flight(b"A", b"", 9)),
        Found(2, Flight(b"C", b"", 7)),
    ]
    assert expected_at(flights, {b"A"}, 10, 2) == []


def test_kcat_gets_times_in_milliseconds() -> None:
    command = kcat_command("127.0.0.1:9092", "flights", 3, 1372953600000, 2)
    assert command[command.index("-o") + 1] == "s@1372953600000"
    assert command[command.index("-p") + 1] == "3"


def test_a_failing_command_says_why() -> None:
    with pytest.raises(CommandFailed, match=r"127\.0\.0\.1:1"):
        tidelog("topic", "list", "--bootstrap-server", "127.0.0.1:1")


# --- a run -------------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """The demo, run on a sample up to its report."""
    directory = tmp_path_factory.mktemp("flights")
    console = Console(file=io.StringIO(), width=100)
    made = Demo(console, Store(f"file://{directory / 'store'}", None, None), SAMPLE)
    made.load()
    with running_node(directory, made.store.url) as node:
        made.create(node)
        written = made.write(node)
        cold = made.offload(node)
        assert sorted(cold) == list(range(PARTITIONS))
        found = made.read_back(node, written, cold)
        made.seek(node, found)
        made.served(node, cold)
        node.stop()
    made.check()
    return made


@pytest.mark.xdist_group("spark")  # in one worker with the next test, so that the run is made once
def test_a_run_prints_its_checks(demo: Demo) -> None:
    assert isinstance(demo.console.file, io.StringIO)
    printed = demo.console.file.getvalue()
    assert f"{SAMPLE:,} records, every offset once, checksum of all values equal" in printed
    assert "the same flights as in the table" in printed
    assert "100.0%" in printed
    assert "no local .log holds any of these offsets" in printed
    assert "sound: " in printed


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_spark_finds_the_means_that_pandas_finds(demo: Demo, spark: object, tmp_path: Path) -> None:  # noqa: F811
    options = {"clusterId": demo.cluster_id}
    delays = delays_from_bucket(spark, demo.store.url, TOPIC, options)  # type: ignore[arg-type]
    plot = tmp_path / "flights.png"
    demo.compare_and_plot(delays, plot)
    assert plot.read_bytes().startswith(b"\x89PNG")
