"""Checks every batch of each segment that a commit added, once, in commit order, and records a verdict.

The queue of the bucket's manifest notifications invokes the function. For each partition in the messages, it reads the cursor
and the manifest, checks the live segments added after the cursor, records a verdict for each, and advances the cursor by
compare-and-swap. If a handler dies, the next one continues at the cursor. Two concurrent handlers do the work twice and record
it once.

Environment: TIDELOG_STORE (s3://BUCKET/PREFIX, the brokers' store), TIDELOG_READER (owner of the cursors and verdicts; default
`verify-commit`). An invocation stops when RESERVE_MS of the function's time limit is left, and leaves the message in the queue
for redelivery.

Damage does not stop the cluster. A verdict `damaged` only writes a log line, which raises an alarm.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from lambdas.environment import Settings, read_settings
from lambdas.notifications import messages
from storage_tiers.clock import Clock, Rng, SystemClock, SystemRng
from storage_tiers.cold.manifest.model import Ids, RemoteSegment, State
from storage_tiers.cold.offline.bucket import Bucket
from storage_tiers.cold.offline.commit_cursor import (
    CommitCursor,
    advance_cursor,
    read_cursor,
    record_missed,
    record_verdict,
)
from storage_tiers.cold.segments.segment_check import Fault, SegmentVerdict, check_segment
from storage_tiers.cold.stores.open import open_blocking_store
from storage_tiers.cold.stores.port import BlockingObjectStore
from storage_tiers.errors import LogError, PreconditionFailed, TierObjectMissing
from storage_tiers.policy.new_segments import CommitWork, NewSegments, plan_new_segments

log = logging.getLogger("tidelog.verify_commit")
log.setLevel(logging.INFO)

#: Milliseconds that an invocation must have left to start with another segment. They suffice to read and check about 1 GiB.
RESERVE_MS = 60_000
#: The number of attempts to follow a partition whose manifest or cursor changes meanwhile.
ATTEMPTS = 20


class Context(Protocol):
    """The part of Lambda's context that this module uses."""

    aws_request_id: str

    def get_remaining_time_in_millis(self) -> int: ...


class OutOfTime(Exception):
    """The time limit is near. The remaining work needs a redelivery."""


def handler(event: Mapping[str, Any], context: Context) -> dict[str, Any]:
    """The entry point for an SQS event source with `ReportBatchItemFailures`. Returns the messages to redeliver."""
    settings = read_settings()
    store = open_blocking_store(settings.location)
    try:
        return handle(event, context, settings, store, SystemClock(), SystemRng())
    finally:
        store.close()


def handle(
    event: Mapping[str, Any], context: Context, settings: Settings, store: BlockingObjectStore, clock: Clock, rng: Rng
) -> dict[str, Any]:
    """`handler` with its dependencies passed in."""
    verifier = Verifier(store, settings.reader, clock, rng, context.get_remaining_time_in_millis)
    failed = []
    for message in messages(event, settings.location):
        try:
            if message.fault:
                raise LogError(message.fault)
            for ids in message.manifests:
                verifier.catch_up(ids)
        except (LogError, OutOfTime) as error:
            _say("deferred", message=message.id, error=f"{type(error).__name__}: {error}")
            failed.append({"itemIdentifier": message.id})
    return {"batchItemFailures": failed}


@dataclass(frozen=True, slots=True)
class Verifier:
    """Follows partitions' commits from the cursors of `reader`, and checks their new segments. `remaining_ms` returns the time
    left of the invocation."""

    store: BlockingObjectStore
    reader: str
    clock: Clock
    rng: Rng
    remaining_ms: Callable[[], int]

    @property
    def bucket(self) -> Bucket:
        return Bucket(self.store)

    def catch_up(self, ids: Ids) -> None:
        """Returns when the cursor has reached the newest commit. After OutOfTime or an error of the store, the cursor is at the
        last commit with recorded verdicts."""
        for _ in range(ATTEMPTS):
            cursor = read_cursor(self.store, ids, self.reader)
            try:
                plan = self._plan(ids, cursor)
                if plan.upto <= cursor.commit:
                    return
                self._follow(plan, cursor)
            except PreconditionFailed:
                continue  # another handler is ahead; the next attempt starts at its cursor
            except TierObjectMissing:
                continue  # a page of an older manifest was swept; the next attempt reads the new manifest
        raise LogError(f"{ids} changed {ATTEMPTS} times while it was checked; redelivery continues the check")

    def _plan(self, ids: Ids, cursor: CommitCursor) -> NewSegments:
        manifest = self.bucket.manifest(ids)
        if manifest is None:  # the manifest was deleted by hand, or never existed
            return NewSegments((), cursor.commit)
        return plan_new_segments(manifest, self.bucket.pages(ids), cursor.commit)

    def _follow(self, plan: NewSegments, cursor: CommitCursor) -> None:
        if plan.missed is not None:
            record_missed(self.store, cursor, plan.missed, now_ms=self.clock.unix_ms())
            _say("missed", partition=str(cursor.ids), after=cursor.commit, swept=plan.missed)
        for work in plan.work:
            self._check(cursor.ids, work)
            cursor = self._advance(cursor, work.commit)
        if plan.upto > cursor.commit:
            self._advance(cursor, plan.upto)

    def _advance(self, cursor: CommitCursor, commit: int) -> CommitCursor:
        writer = self.rng.token(16).hex()
        return advance_cursor(self.store, cursor, commit, writer=writer, now_ms=self.clock.unix_ms())

    def _check(self, ids: Ids, work: CommitWork) -> None:
        for segment in work.segments:
            if self.remaining_ms() < RESERVE_MS:
                raise OutOfTime(f"{ids} was checked up to commit {work.commit - 1}")
            verdict = check_segment(self.store, segment)
            if self._is_gone(ids, segment, verdict):
                continue
            now_ms = self.clock.unix_ms()
            if record_verdict(self.store, ids, self.reader, segment, verdict, now_ms=now_ms):
                _say(
                    "damaged" if verdict.findings else "sound",
                    partition=str(ids),
                    commit=work.commit,
                    base=segment.base,
                    end=segment.end,
                    batches=verdict.batches,
                    findings=[f"{found.key}: {found.fault.value}: {found.detail}" for found in verdict.findings],
                )

    def _is_gone(self, ids: Ids, segment: RemoteSegment, verdict: SegmentVerdict) -> bool:
        """Whether an object is missing only because its segment was removed after the manifest was read."""
        if all(found.fault is not Fault.MISSING for found in verdict.findings):
            return False
        manifest = self.bucket.manifest(ids)
        if manifest is None or manifest.state is State.DELETED:
            return True
        live = plan_new_segments(manifest, self.bucket.pages(ids), segment.added.commit - 1).work
        return all(segment.key != other.key for work in live for other in work.segments)


def _say(verdict: str, **fields: object) -> None:
    log.info(json.dumps({"verdict": verdict, **fields}))
