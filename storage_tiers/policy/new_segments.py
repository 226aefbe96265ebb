"""Plans the next step of a reader of commits: pure, over a manifest and the reader's cursor.

The plan contains the live segments that commits after the cursor added, grouped by commit, so that the cursor can advance
after each. It omits segments added and removed since the cursor. If some of them may have been swept, `missed` reports it.

Offsets need not rise from commit to commit. Compaction replaces older neighbours by one segment in a new commit. A reader
therefore gets their offsets again. A reader that was behind may get these offsets for the first time, after newer ones. A
reader that needs each record once, in order, sorts the segments of a whole plan by offset, and skips offsets below the offset
that it reached before.
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
    """`missed` is the commit of the newest swept removal, if it is past the cursor; `upto` is the cursor after all work."""

    work: tuple[CommitWork, ...]
    upto: int
    missed: int | None = None


def plan_new_segments(manifest: Manifest, load_page: LoadPage, cursor: int) -> NewSegments:
    """Plans the work after the cursor. If no commit follows the cursor, `work` is empty and `upto` is the cursor."""
    if manifest.commit <= cursor:
        return NewSegments((), cursor)
    if manifest.state is State.DELETED:
        return NewSegments((), manifest.commit)
    added = added_after(manifest, load_page, cursor)
    work = tuple(
        CommitWork(commit, tuple(segments))
        for commit, segments in itertools.groupby(added, key=lambda segment: segment.added.commit)
    )
    # A reader with cursor 0 has seen nothing: segments swept before its first plan do not count as missed.
    missed = manifest.swept if 0 < cursor < manifest.swept else None
    return NewSegments(work, manifest.commit, missed)
