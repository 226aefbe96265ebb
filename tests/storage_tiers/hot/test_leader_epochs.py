"""The epoch history: assignments, followers' look-ups, and what truncation removes."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_tiers.errors import StorageError
from storage_tiers.hot.leader_epochs import LeaderEpochs, encode, read_checkpoint
from storage_tiers.types import EpochEntry

HISTORY = (EpochEntry(2, 6), EpochEntry(4, 11), EpochEntry(5, 20))


@pytest.mark.parametrize(
    ("epoch", "answer"),
    [
        (-1, (-1, -1)),
        (1, (1, 6)),  # before every known epoch: ends where the first known epoch begins
        (2, (2, 11)),
        (3, (2, 11)),
        (4, (4, 20)),
        (5, (5, 31)),
        (6, (-1, -1)),
    ],
)
def test_the_end_offset_of_an_epoch_is_found(epoch: int, answer: tuple[int, int]) -> None:
    assert LeaderEpochs(HISTORY).end_offset_for(epoch, 31) == answer


def test_nothing_is_known_of_an_empty_history() -> None:
    assert LeaderEpochs().end_offset_for(0, 10) == (-1, -1)
    assert LeaderEpochs().epoch_at(5) == -1


@pytest.mark.parametrize(
    ("offset", "epoch"), [(0, -1), (5, -1), (6, 2), (10, 2), (11, 4), (19, 4), (20, 5), (1_000_000, 5)]
)
def test_the_epoch_of_an_offset_is_found(offset: int, epoch: int) -> None:
    assert LeaderEpochs(HISTORY).epoch_at(offset) == epoch


def test_assigning_removes_contradicting_entries() -> None:
    epochs = LeaderEpochs(HISTORY)
    assert not epochs.assign(5, 25)
    assert epochs.assign(6, 20)
    assert epochs.entries() == (EpochEntry(2, 6), EpochEntry(4, 11), EpochEntry(6, 20))
    assert epochs.assign(4, 9)
    assert epochs.entries() == (EpochEntry(2, 6), EpochEntry(4, 9))
    assert epochs.latest == 4
    assert not epochs.assign(-1, 12)


def test_truncation_at_both_ends() -> None:
    epochs = LeaderEpochs(HISTORY)
    epochs.truncate_from_end(20)
    assert epochs.entries() == HISTORY[:2]
    epochs.truncate_from_start(8)
    assert epochs.entries() == (EpochEntry(2, 8), EpochEntry(4, 11))
    epochs.truncate_from_start(11)
    assert epochs.entries() == (EpochEntry(4, 11),)
    epochs.truncate_from_start(3)
    assert epochs.entries() == (EpochEntry(4, 11),)
    assert epochs.below(11) == ()
    assert epochs.below(12) == (EpochEntry(4, 11),)


def test_the_checkpoint_is_kafkas_text(tmp_path: Path) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_bytes(encode(HISTORY))
    assert path.read_text() == "0\n3\n2 6\n4 11\n5 20\n"
    assert read_checkpoint(str(path)).entries() == HISTORY


@pytest.mark.parametrize("content", ["", "1\n0\n", "0\n2\n1 2\n", "0\n1\n1\n", "0\n1\na b\n", "0\n1\n1 2 3\n"])
def test_a_damaged_checkpoint_is_an_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_text(content)
    with pytest.raises(StorageError, match="damaged"):
        read_checkpoint(str(path))
