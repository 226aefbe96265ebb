"""How the last transaction of an id ended, for partitions that have lost its marker."""

from __future__ import annotations

import pytest

from grpc_api.contract.transactions import Markers, ProducerIdAndEpoch
from service.coordination.transactions.transaction import LAST_EPOCH
from storage_tiers.types import FENCING_EPOCH
from tests.service.coordination.transactions.driver import DAY, A, B, Coordinator


def ended(x: Coordinator, *, commit: bool, version: int = 2) -> ProducerIdAndEpoch:
    """Ends a transaction by a commit or an abort; returns its producer."""
    producer = x.producer()
    x.add(producer, A, version=version)
    assert x.end(producer, commit=commit, version=version).error is None
    x.mark()
    return producer


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_partition_gets_the_marker_of_the_last_transaction_again(commit: bool, is_restarted: bool) -> None:
    x = Coordinator()
    old = ended(x, commit=commit)
    if is_restarted:
        x.restart()
    lost = [Markers("x", old._replace(epoch=old.epoch + 1), commit, [A, B], 2)]
    assert x.shard.outcomes.lost({old: (B, A)}) == lost
    after = x.producer()
    assert x.shard.outcomes.lost({old: (A, B)}) == lost  # also once the next producer has begun,
    x.add(after, B)
    assert x.shard.outcomes.lost({old: (A, B)}) == lost  # and has opened a transaction in another partition
    assert x.shard.outcomes.lost({after: (B,)}) == []


def test_the_outcome_of_an_earlier_transaction_is_not_known() -> None:
    x = Coordinator()
    old = ended(x, commit=True)
    ended(x, commit=False)
    assert x.shard.outcomes.lost({old: (A,)}) == []
    assert x.shard.outcomes.lost({old._replace(id=old.id + 50): (A,)}) == []


def test_before_version_2_no_outcome_is_known_since_all_transactions_have_one_epoch() -> None:
    x = Coordinator()
    old = ended(x, commit=True, version=0)
    for epoch in (old.epoch - 1, old.epoch, old.epoch + 1):
        assert x.shard.outcomes.lost({old._replace(epoch=epoch): (A,)}) == []


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("commit", [True, False])
def test_the_outcome_under_the_last_epoch_of_a_producer_id_is_known(is_restarted: bool, commit: bool) -> None:
    x = Coordinator()
    first = x.producer()
    x.shard._transactions["x"].producer = old = first._replace(epoch=LAST_EPOCH)
    x.add(old, A)
    after = x.end(old, commit=commit).producer
    x.mark()
    if is_restarted:
        x.restart()
    assert (after.epoch, after.id != old.id) == (0, True)
    lost = [Markers("x", ProducerIdAndEpoch(old.id, FENCING_EPOCH), commit, [A], 2)]
    assert x.shard.outcomes.lost({old: (A,)}) == lost
    x.end(after, commit=False)  # a transaction without partitions
    x.mark()
    assert x.shard.outcomes.lost({old: (A,)}) == []


def test_an_id_that_expires_is_forgotten() -> None:
    x = Coordinator()
    old = ended(x, commit=True)
    x.wait(8 * DAY)
    assert x.shard.outcomes.lost({old: (A,)}) == []


@pytest.mark.parametrize("restarted", [None, "before the markers", "after the markers"])
def test_a_fenced_transaction_before_version_2_says_nothing_of_others_with_its_epoch(restarted: str | None) -> None:
    """An earlier transaction with the same epoch may have been committed, and have lost its marker."""
    x = Coordinator()
    old = x.committed(x.producer(), A, version=0)
    x.add(old, B, version=0)
    x.wait(60_001)
    if restarted == "before the markers":
        x.restart()
    assert x.mark() == [Markers("x", old._replace(epoch=old.epoch + 1), False, [B], 2)]
    if restarted == "after the markers":
        x.restart()
    assert x.shard.outcomes.lost({old: (A,)}) == []


def test_a_first_transaction_of_version_2_says_nothing_of_one_before_with_its_epoch() -> None:
    """The client learns of version 2 between the two transactions."""
    x = Coordinator()
    old = x.committed(x.producer(), A, version=0)
    x.add(old, B)
    assert x.end(old, commit=False).error is None
    x.mark()
    assert x.shard.outcomes.lost({old: (A,)}) == []


def test_a_fenced_transaction_of_version_2_is_known_to_be_aborted() -> None:
    x = Coordinator()
    old = x.producer()
    x.add(old, A)
    x.wait(60_001)
    x.mark()
    x.restart()
    assert x.shard.outcomes.lost({old: (A,)}) == [Markers("x", old._replace(epoch=old.epoch + 1), False, [A], 2)]
