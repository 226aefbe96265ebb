"""A broker whose controller is in another process ends once the metadata has not explained refused writes in time."""

from __future__ import annotations

import pytest

from service.broker.background.fence_patience import APART_S, PATIENCE_S, FencePatience
from storage_tiers.errors import DeletedInStore, FencedWriter, LogError, StoreRefused

FENCED = FencedWriter("fenced")


@pytest.mark.parametrize(
    ("refusals", "ends"),
    [
        pytest.param([(FENCED, 7, 0.0)], [False], id="the metadata may explain the first"),
        pytest.param([(StoreRefused("no"), 7, 0.0)], [True], id="another error ends the broker at once"),
        pytest.param([(FENCED, 7, float(t)) for t in range(11)], [False] * 10 + [True], id="it lasts"),
        pytest.param(
            [(DeletedInStore("gone"), 7, float(t)) for t in range(11)],
            [False] * 10 + [True],
            id="a live topic is deleted",
        ),
        pytest.param(
            [(FENCED, 7, 0.0), (FENCED, 7, 5.0), (FENCED, 8, 10.0), (FENCED, 8, 15.0), (FENCED, 8, 20.0)],
            [False, False, False, False, True],
            id="another claim begins it again",
        ),
        pytest.param(
            [(FENCED, 7, 0.0), (FENCED, 7, APART_S + 0.1), (FENCED, 7, PATIENCE_S)],
            [False, False, False],
            id="an earlier refusal has nothing to do with it",
        ),
    ],
)
def test_a_refusal_ends_the_broker_only_if_the_metadata_does_not_explain_it_in_time(
    refusals: list[tuple[LogError, int, float]], ends: list[bool]
) -> None:
    patience = FencePatience()
    assert [patience.ends_broker(*each) for each in refusals] == ends
