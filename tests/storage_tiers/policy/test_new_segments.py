"""A reader of commits reads each record of a partition once, although segments are replaced meanwhile."""

from __future__ import annotations

import random

import pytest

from storage_tiers.cold.manifest.model import Manifest, ManifestPage, PageRef
from storage_tiers.cold.manifest.replacement import replace_segments
from storage_tiers.cold.manifest.transitions import first_manifest
from storage_tiers.policy.new_segments import NewSegments, plan_new_segments
from tests.storage_tiers.cold.support import IDS, segment_of
from tests.storage_tiers.cold.test_manifest_transitions import by, extended


class Partition:
    """Segments of ten offsets that are added and replaced, one commit each."""

    def __init__(self) -> None:
        self.manifest: Manifest = first_manifest(IDS)
        self._number = 0

    def _key(self) -> int:
        self._number += 1
        return self._number

    def extend(self) -> None:
        end = self.manifest.end
        self.manifest = extended(self.manifest, segment_of(IDS, end, end + 10, self._key()))

    def replace(self, first: int, count: int) -> None:
        """Replaces `count` segments, from index `first` on, with one."""
        old = self.manifest.segments[first : first + count]
        new = segment_of(IDS, old[0].base, old[-1].end, self._key())
        self.manifest = replace_segments(self.manifest, old, new, by(self._number)).manifest

    def plan(self, cursor: int) -> NewSegments:
        return plan_new_segments(self.manifest, _no_page, cursor)


def _no_page(ref: PageRef) -> ManifestPage:
    raise AssertionError(f"{ref.key} is not there")


def spans(plan: NewSegments) -> list[list[tuple[int, int]]]:
    return [[(each.base, each.end) for each in work.segments] for work in plan.work]


def test_old_offsets_come_after_newer_ones() -> None:
    partition = Partition()
    for _ in range(3):
        partition.extend()
    seen = partition.plan(0)
    assert spans(seen) == [[(0, 10)], [(10, 20)], [(20, 30)]]
    partition.replace(0, 2)
    assert spans(partition.plan(seen.upto)) == [[(0, 20)]], "again, for a reader that was there"
    assert spans(partition.plan(0)) == [[(20, 30)], [(0, 20)]], "for the first time, for one that was not"


class Reader:
    """Reads as docs/lambdas.md advises."""

    def __init__(self) -> None:
        self.cursor = self.reached = 0

    def catch_up(self, partition: Partition) -> None:
        plan = partition.plan(self.cursor)
        for segment in sorted((each for work in plan.work for each in work.segments), key=lambda each: each.base):
            if segment.end > self.reached:
                assert segment.base <= self.reached, "no offset is left out"
                self.reached = segment.end
        assert self.reached == partition.manifest.end
        self.cursor = plan.upto


@pytest.mark.parametrize("seed", range(20))
def test_a_reader_by_offset_reads_each_record_once(seed: int) -> None:
    chance, partition = random.Random(seed), Partition()
    readers = [Reader() for _ in range(3)]
    again = 0
    for _ in range(60):
        live = len(partition.manifest.segments)
        if live > 2 and chance.random() < 0.5:
            first = chance.randrange(live - 1)
            partition.replace(first, chance.randrange(1, live - first))
        else:
            partition.extend()
        if chance.random() < 0.3:
            reader = chance.choice(readers)
            again += any(base < reader.reached for work in spans(partition.plan(reader.cursor)) for base, _ in work)
            reader.catch_up(partition)
    for reader in readers:
        reader.catch_up(partition)
    assert again > 0, "a reader has met offsets that it had read"
