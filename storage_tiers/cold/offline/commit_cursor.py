"""The state of a reader of commits in the bucket: its position (`CommitCursor`), its verdicts, and the segments it missed.

    {"format": 2, "least_reader": 2, "reader": "verify-commit", "cluster_id": "…", "topic": "flights", "topic_id": "…",
     "partition": 3, "commit": 41, "writer": "9f…", "advanced_at": 1700000000000}

A cursor is one small object per partition. It is changed only by compare-and-swap, and only after the work up to its commit was
recorded. A verdict is written once, under a key that names its segment: if two readers do the same work, the second finds the
first one's verdict. Invariant: a cursor never falls.

Not promised: that the work is done once, only that it is recorded once. These objects are not swept with their topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.documents import FORMAT, LEAST_READER, Fields, check_version, document
from storage_tiers.cold.manifest.model import Ids, RemoteSegment
from storage_tiers.cold.segments.segment_check import SegmentVerdict
from storage_tiers.cold.stores.port import BlockingObjectStore
from storage_tiers.errors import PreconditionFailed, TierObjectMissing


@dataclass(frozen=True, slots=True)
class CommitCursor:
    """All segments that commits up to `commit` added are processed. `etag` is None before the first advance."""

    ids: Ids
    reader: str
    commit: int = 0
    etag: str | None = None

    @property
    def key(self) -> str:
        return keys.key(
            keys.CursorKey(self.ids.cluster_id, self.reader, self.ids.topic, self.ids.topic_id, self.ids.partition)
        )


def read_cursor(store: BlockingObjectStore, ids: Ids, reader: str) -> CommitCursor:
    """Reads the cursor; it is at commit 0 if none was written yet. Raises TierCorrupt if it is unreadable or belongs to another
    partition."""
    cursor = CommitCursor(ids, reader)
    try:
        body = store.get(cursor.key)
    except TierObjectMissing:
        return cursor
    fields = Fields.parse(body.data, cursor.key)
    check_version(fields)
    named = (fields.text("reader"), fields.text("topic_id"), fields.natural("partition"))
    if named != (reader, str(ids.topic_id), ids.partition):
        raise fields.bad(f"it is the cursor of {named[0]} on partition {named[2]} of topic id {named[1]}")
    return CommitCursor(ids, reader, fields.natural("commit"), body.etag)


def advance_cursor(
    store: BlockingObjectStore, cursor: CommitCursor, commit: int, *, writer: str, now_ms: int
) -> CommitCursor:
    """Advances the cursor to `commit`. Raises PreconditionFailed if another reader has advanced it: read the cursor again and
    continue from there. After any other error of the store the outcome is unknown; do the same.

    `writer` names the invocation, so that no two cursors have equal bytes.
    """
    if commit <= cursor.commit:
        raise ValueError(f"a cursor at commit {cursor.commit} cannot go back to {commit}")
    fields = {**_about(cursor.ids, cursor.reader), "commit": commit, "writer": writer, "advanced_at": now_ms}
    info = store.put(cursor.key, document(fields), if_absent=cursor.etag is None, if_match=cursor.etag)
    return CommitCursor(cursor.ids, cursor.reader, commit, info.etag)


def record_verdict(
    store: BlockingObjectStore, ids: Ids, reader: str, segment: RemoteSegment, verdict: SegmentVerdict, *, now_ms: int
) -> bool:
    """Records the verdict. Returns False if this segment already has one."""
    key = keys.key(
        keys.VerdictKey(
            ids.cluster_id, reader, ids.topic, ids.topic_id, ids.partition, segment.added.commit, segment.base
        )
    )
    findings = [{"fault": found.fault.value, "key": found.key, "detail": found.detail} for found in verdict.findings]
    return _write_once(
        store,
        key,
        {
            **_about(ids, reader),
            "commit": segment.added.commit,
            "base": segment.base,
            "end": segment.end,
            "segment": segment.key,
            "verdict": "damaged" if findings else "sound",
            "batches": verdict.batches,
            "records": segment.records,
            "bytes_read": verdict.bytes_read,
            "findings": findings,
            "checked_at": now_ms,
        },
    )


def record_missed(store: BlockingObjectStore, cursor: CommitCursor, swept: int, *, now_ms: int) -> bool:
    """Records that segments added after the cursor's commit may have been removed and swept, by commit `swept` at the latest,
    before this reader read them. Returns False if this was recorded before."""
    ids = cursor.ids
    key = keys.key(
        keys.MissedKey(ids.cluster_id, cursor.reader, ids.topic, ids.topic_id, ids.partition, cursor.commit, swept)
    )
    fields = {**_about(ids, cursor.reader), "after": cursor.commit, "swept": swept, "noticed_at": now_ms}
    return _write_once(store, key, fields)


def _about(ids: Ids, reader: str) -> dict[str, object]:
    return {
        "format": FORMAT,
        "least_reader": LEAST_READER,
        "reader": reader,
        "cluster_id": ids.cluster_id,
        "topic": ids.topic,
        "topic_id": str(ids.topic_id),
        "partition": ids.partition,
    }


def _write_once(store: BlockingObjectStore, key: str, fields: Mapping[str, object]) -> bool:
    try:
        store.put(key, document(fields), if_absent=True)
    except PreconditionFailed:
        return False
    return True
