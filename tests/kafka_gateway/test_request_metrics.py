"""The request metrics of each API."""

from __future__ import annotations

import pytest

from kafka_gateway.connection import TOTAL_BOUNDS_S, Connection, RequestMetrics
from kafka_gateway.settings import Limits


@pytest.mark.parametrize("place", range(len(TOTAL_BOUNDS_S)))
def test_a_bucket_counts_durations_up_to_its_bound(place: int) -> None:
    metrics = RequestMetrics()
    metrics.answered(TOTAL_BOUNDS_S[place])
    metrics.answered(TOTAL_BOUNDS_S[place] * 1.001)
    assert metrics.totals[place : place + 2] == [1, 1]
    assert sum(metrics.totals) == 2
    assert metrics.total_s == pytest.approx(TOTAL_BOUNDS_S[place] * 2.001)


def test_very_long_durations_count_in_the_last_bucket() -> None:
    metrics = RequestMetrics()
    metrics.answered(1e9)
    metrics.answered(0.0)
    assert (metrics.totals[0], metrics.totals[-1]) == (1, 1)


def test_a_write_counts_from_when_its_answer_was_made() -> None:
    connection, metrics = Connection(Limits(), bytearray(64)), RequestMetrics()
    assert connection.wrote(1.0, 2.0) == 2.0
    connection.answered(metrics, 0.5, 10.0)
    assert connection.wrote(9.0, 12.0) == 12.0
    assert (metrics.sends, metrics.answer_queue_s, metrics.answer_send_s) == (1, 0.0, 2.0)
    connection.answered(metrics, 0.5, 10.0)
    assert connection.wrote(11.0, 12.0) == 12.0
    assert (metrics.sends, metrics.answer_queue_s, metrics.answer_send_s) == (2, 1.0, 3.0)
    assert connection.wrote(12.0, 13.0) == 13.0
    assert metrics.sends == 2
