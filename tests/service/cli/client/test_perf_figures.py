"""The figures of `tidelog perf`: the same numbers give the lines that Kafka's tools have printed."""

from __future__ import annotations

import pytest

from service.cli.client.perf_figures import MOST_SAMPLES, Consumed, Latencies, percentiles


def measured(*latencies_ms: float, size: int = 100, elapsed_ms: float) -> Latencies:
    found = Latencies(len(latencies_ms), 0.0)
    for latency in latencies_ms:
        found.add(latency, size)
    assert found.total(elapsed_ms).records == len(latencies_ms)
    return found


def test_a_summary_is_the_line_of_kafkas_tool() -> None:
    total = measured(46, 9, 674, elapsed_ms=2661).total(2661)
    assert total.summary() == (
        "3 records sent, 1.127396 records/sec (0.00 MB/sec), 243.00 ms avg latency, 674.00 ms max latency, "
        "46 ms 50th, 674 ms 95th, 674 ms 99th, 674 ms 99.9th."
    )
    assert total.summary("steady state").startswith("3 steady state records sent, 1.127396 records/sec")


def test_progress_is_the_line_of_kafkas_tool() -> None:
    found = Latencies(100_000, 0.0)
    for _ in range(59_502):
        found.add(64, 100)
    found.add(321, 100)
    assert found.window(5000.1).progress() == (
        "59503 records sent, 11900.4 records/sec (1.13 MB/sec), 64.0 ms avg latency, 321.0 ms max latency."
    )


@pytest.mark.parametrize(
    ("count", "expected"), [(0, [0, 0, 0, 0]), (1, [0, 0, 0, 0]), (3, [1, 2, 2, 2]), (1000, [500, 950, 990, 999])]
)
def test_a_percentile_is_the_sample_below_which_that_share_lies(count: int, expected: list[int]) -> None:
    assert list(percentiles([float(number) for number in reversed(range(count))]).values()) == expected


def test_a_window_has_the_samples_since_the_last_one_and_the_total_has_all() -> None:
    found = measured(5, 80, 20, elapsed_ms=1000)
    first = found.window(1000)
    found.add(40, 300)
    second, total = found.window(1500), found.total(1600)
    assert (first.records, first.bytes, first.elapsed_ms, first.average_ms, first.max_ms) == (3, 300, 1000, 35, 80)
    assert (second.records, second.bytes, second.elapsed_ms, second.average_ms, second.max_ms) == (1, 300, 500, 40, 40)
    assert (total.records, total.bytes, total.elapsed_ms, total.average_ms, total.max_ms) == (4, 600, 1600, 36.25, 80)
    nothing = found.window(1600)
    assert (nothing.records, nothing.average_ms, nothing.max_ms) == (0, 0, 0)


def test_a_long_run_keeps_a_sample_of_its_latencies() -> None:
    expected = 3 * MOST_SAMPLES
    found = Latencies(expected, 0.0)
    for number in range(expected):
        found.add(number, 1)
    total = found.total(1)
    assert len(found._samples) == MOST_SAMPLES
    assert total.percentiles_ms["50th"] == pytest.approx(expected / 2, abs=3)
    assert (total.records, total.max_ms) == (expected, expected - 1)


# --- consuming --------------------------------------------------------------------------------------------------------
#: 2026-11-24 02:57:52 UTC
BEGAN_MS = 1_795_489_072_000


def test_a_window_of_consuming_is_the_line_of_kafkas_tool() -> None:
    window = Consumed(BEGAN_MS + 5305, 111, 9000, 900_000, 0)
    so_far = Consumed(BEGAN_MS, 5416, 9001, 900_100, 4343)
    assert window.progress(so_far) == (
        "2026-11-24 02:57:57:416, 0, 0.8584, 7.7325, 9001, 81081.0811, 0, 111, 7.7325, 81081.0811"
    )


def test_a_total_of_consuming_is_the_line_of_kafkas_tool() -> None:
    total = Consumed(BEGAN_MS, 4610, 1, 100, 4343)
    assert total.summary() == (
        "2026-11-24 02:57:52:000, 2026-11-24 02:57:56:610, 0.0001, 0.0000, 1, 0.2169, 4343, 267, 0.0004, 3.7453"
    )
    assert total.as_json() == {
        "records": 1,
        "bytes": 100,
        "seconds": 4.61,
        "records_per_second": 0.2,
        "mib_per_second": 0.0,
        "rebalance_ms": 4343,
        "fetch_ms": 267,
        "fetch_records_per_second": 3.7,
        "fetch_mib_per_second": 0.0,
    }
