"""The next step of a reader of commits: a pure plan over a manifest and the reader's cursor.

The events are the live segments that commits after the cursor added, grouped by commit, so that the cursor can advance after
each. A segment that was added and removed between two looks is no event: nobody can read it in a later state either. If such a
segment was also swept, or may have been, the plan says so.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from storage_tiers.cold.manifest.lookup import LoadPage, added_after
from storage_tiers.cold.manifest.model import Manifest, RemoteSegment, State


@dataclass(frozen=True, slots=True)
class CommitWork:
    """The live segments that `commit` added, in offset order."""

    commit: int
    segments: tuple[RemoteSegment, ...]


@dataclass(frozen=True, slots=True)
class NewSegments:
    """`missed` is the newest swept removal, if it is past the cursor; `upto` is where the cursor stands when all is done."""

    work: tuple[CommitWork, ...]
    upto: int
    missed: int | None = None


def plan_new_segments(manifest: Manifest, load_page: LoadPage, cursor: int) -> NewSegments:
    """Nothing to do is an empty `work` with `upto` at or below the cursor."""
    if manifest.commit <= cursor:
        return NewSegments((), cursor)
    if manifest.state is State.DELETED:
        return NewSegments((), manifest.commit)
    added = added_after(manifest, load_page, cursor)
    work = tuple(
        CommitWork(commit, tuple(segments))
        for commit, segments in itertools.groupby(added, key=lambda segment: segment.added.commit)
    )
    # A cursor at 0 has seen nothing yet: what was swept before it first came is not missed, it was never promised.
    missed = manifest.swept if 0 < cursor < manifest.swept else None
    return NewSegments(work, manifest.commit, missed)
