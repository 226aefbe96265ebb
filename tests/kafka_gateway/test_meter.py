"""The counts of an API's requests."""

from __future__ import annotations

import pytest

from kafka_gateway.connection import TOTAL_BOUNDS_S, Connection, Meter
from kafka_gateway.settings import Limits


@pytest.mark.parametrize("place", range(len(TOTAL_BOUNDS_S)))
def test_a_bucket_holds_what_is_not_longer_than_its_bound(place: int) -> None:
    meter = Meter()
    meter.answered(TOTAL_BOUNDS_S[place])
    meter.answered(TOTAL_BOUNDS_S[place] * 1.001)
    assert meter.totals[place : place + 2] == [1, 1]
    assert sum(meter.totals) == 2
    assert meter.total_s == pytest.approx(TOTAL_BOUNDS_S[place] * 2.001)


def test_what_takes_for_ever_is_in_the_last_bucket() -> None:
    meter = Meter()
    meter.answered(1e9)
    meter.answered(0.0)
    assert (meter.totals[0], meter.totals[-1]) == (1, 1)


def test_a_write_counts_from_when_its_answer_was_made() -> None:
    connection, meter = Connection(Limits(), bytearray(64)), Meter()
    assert connection.wrote(1.0, 2.0) == 2.0
    connection.answered(meter, 0.5, 10.0)
    assert connection.wrote(9.0, 12.0) == 12.0
    assert (meter.sends, meter.answer_queue_s, meter.answer_send_s) == (1, 0.0, 2.0)
    connection.answered(meter, 0.5, 10.0)
    assert connection.wrote(11.0, 12.0) == 12.0
    assert (meter.sends, meter.answer_queue_s, meter.answer_send_s) == (2, 1.0, 3.0)
    assert connection.wrote(12.0, 13.0) == 13.0
    assert meter.sends == 2
