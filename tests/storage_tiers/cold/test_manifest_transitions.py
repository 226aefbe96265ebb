"""The refusals of each manifest transition: the store's compare-and-swap checks none of these conditions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from storage_tiers.cold.manifest import transitions
from storage_tiers.cold.manifest.model import MAX_TOMBSTONED, Author, Manifest, ManifestWriter, RemoteSegment, State
from storage_tiers.cold.manifest.transitions import broken, broken_step, first_manifest
from storage_tiers.errors import DeletedInStore, FencedWriter, InvalidRequest
from tests.storage_tiers.cold.support import IDS, segment_of

FIRST, SECOND, THIRD = (segment_of(IDS, 10 * n, 10 * n + 10, n + 1) for n in range(3))


def by(number: int, incarnation: int = 1) -> Author:
    return Author(ManifestWriter(1, incarnation), f"{number:032x}", 1000 + number, lambda: f"{number:032x}", {})


def extended(manifest: Manifest, segment: RemoteSegment, *, epoch: int = 3) -> Manifest:
    return transitions.extend(
        manifest,
        segment,
        by(manifest.commit + 1),
        leader_epoch=epoch,
        last_record_epoch=epoch,
        log_start=manifest.log_start,
    )


@pytest.fixture
def manifest() -> Manifest:
    return extended(extended(first_manifest(IDS), FIRST), SECOND)


def test_no_extension_is_committed_under_an_older_epoch(manifest: Manifest) -> None:
    assert extended(manifest, THIRD, epoch=4).leader_epoch == 4
    with pytest.raises(FencedWriter, match="belongs to leader epoch 3, not 2"):
        extended(manifest, THIRD, epoch=2)


@pytest.mark.parametrize(
    "taken",
    [
        replace(THIRD, key=FIRST.key),
        replace(THIRD, sidecar_key=FIRST.sidecar_key),
        replace(THIRD, key=SECOND.sidecar_key),
        replace(THIRD, sidecar_key="tombstoned"),
    ],
)
def test_a_key_that_the_manifest_names_never_becomes_another_segments(manifest: Manifest, taken: RemoteSegment) -> None:
    named = transitions.tombstone(manifest, ["tombstoned"], by(3))
    with pytest.raises(InvalidRequest, match="is already in the manifest"):
        extended(named, taken)


def test_a_segment_begins_at_the_end_or_log_start_hides_the_gap(manifest: Manifest) -> None:
    later = segment_of(IDS, 25, 30, 9)
    for log_start in (0, 24):
        with pytest.raises(InvalidRequest, match="must begin at offset 20, not at 25"):
            transitions.extend(manifest, later, by(3), leader_epoch=3, last_record_epoch=3, log_start=log_start)
    found = transitions.extend(manifest, later, by(3), leader_epoch=3, last_record_epoch=3, log_start=25)
    assert (found.log_start, found.segments[-1].gap_from, broken(found)) == (25, 20, None)


def test_as_many_keys_are_tombstoned_as_the_format_has_room_for(manifest: Manifest) -> None:
    full = transitions.tombstone(manifest, [f"orphan-{n}" for n in range(MAX_TOMBSTONED)], by(3))
    assert len(full.tombstoned) == MAX_TOMBSTONED
    with pytest.raises(InvalidRequest, match=f"at most {MAX_TOMBSTONED} keys"):
        transitions.tombstone(full, ["one more"], by(4))


def test_a_pin_keeps_the_state_of_its_own_commit(manifest: Manifest) -> None:
    pinned = transitions.pin(manifest, "kept", by(3))
    (found,) = pinned.pins
    assert (found.commit, found.log_start, found.end) == (pinned.commit, 0, 20)


def test_a_deleted_manifest_names_nothing_and_is_the_last_one(manifest: Manifest) -> None:
    named = transitions.tombstone(transitions.pin(manifest, "kept", by(3)), ["orphan"], by(4))
    gone = transitions.delete(named, by(5))
    assert gone.state is State.DELETED
    assert (gone.segments, gone.removed, gone.tombstoned, gone.pins, gone.pages, gone.sidecar) == (
        (),
        (),
        (),
        (),
        (),
        None,
    )
    with pytest.raises(DeletedInStore, match="is deleted in the bucket"):
        transitions.touch(gone, by(6))
    assert broken_step(gone, replace(gone, commit=gone.commit + 1)) == "nothing follows a deletion"


@pytest.mark.parametrize("name", ["leader_epoch", "incarnation", "log_start", "end", "swept"])
def test_nothing_that_only_rises_falls(manifest: Manifest, name: str) -> None:
    six, seven = dict[str, Any]({name: 6}), dict[str, Any]({name: 7})
    old = replace(manifest, **seven)
    after = transitions.touch(old, by(9, incarnation=8))
    assert broken_step(old, replace(after, **seven)) is None
    assert broken_step(old, replace(after, **six)) == f"{name} would fall from 7 to 6"


def test_a_writer_of_the_previous_incarnation_is_fenced(manifest: Manifest) -> None:
    claimed = transitions.touch(manifest, by(3, incarnation=5))
    assert claimed.incarnation == 5
    with pytest.raises(FencedWriter, match="incarnation 5, this node is 4"):
        transitions.touch(claimed, by(4, incarnation=4))
