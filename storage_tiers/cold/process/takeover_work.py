"""Claims the manifest of each partition for a node that is built from the bucket (a take-over)."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.commit import LoadedManifest
from storage_tiers.cold.manifest.lineage import MAX_LOOKED_INTO, Span, follow_one_another
from storage_tiers.cold.manifest.model import Ids, Manifest, State
from storage_tiers.cold.manifest.transitions import first_manifest
from storage_tiers.cold.process import operations as ask
from storage_tiers.cold.process.context import TierContext
from storage_tiers.cold.segments import sidecar
from storage_tiers.cold.segments.partition_tier import PartitionTier
from storage_tiers.errors import StoreRefused, TierCorrupt, TierObjectMissing
from storage_tiers.hot.producer_state import ProducerStateManager
from storage_tiers.types import NO_PRODUCER_ID


async def take_partition(context: TierContext, question: ask.TakePartition) -> ask.TakenPartition:
    tier = await context.partition(question.ids, question.writer)
    loaded = await context.reads.retry_until_deadline(f"manifest of {question.ids}", tier.load)
    if question.dry:
        loaded = await _newest(context, tier, loaded)
    manifest = loaded.manifest if loaded is not None else first_manifest(question.ids)
    reached_at = _reached_at(manifest)
    if manifest.state is not State.DELETED and not question.dry:
        claiming = tier.claim(max(manifest.leader_epoch, question.least_epoch, 0))
        manifest = await context.in_time(claiming, f"claiming {question.ids}")
    return ask.TakenPartition(
        manifest.state is State.DELETED,
        manifest.leader_epoch,
        manifest.log_start,
        manifest.end,
        reached_at,
        await _highest_producer(context, manifest) if question.with_producers else NO_PRODUCER_ID,
    )


async def _newest(context: TierContext, tier: PartitionTier, loaded: LoadedManifest | None) -> LoadedManifest | None:
    """The manifest, if nothing was committed after it. StoreRefused if segments beyond its end prove a later commit: a claim
    would make the older manifest final, and the sweeper would delete those segments."""
    ids = tier.ids
    while loaded is None or loaded.manifest.state is not State.DELETED:
        manifest = loaded.manifest if loaded is not None else None
        seen = await context.reads.retry_until_deadline(
            f"segments of {ids}", functools.partial(_committed_beyond, context, ids, manifest)
        )
        if not seen:
            break
        # The partition's owner may have committed meanwhile.
        again = await context.reads.retry_until_deadline(f"manifest of {ids}", tier.load)
        if again is not None and again.manifest.end != (manifest.end if manifest is not None else 0):
            loaded = again
            continue
        shows = (
            "has no manifest" if manifest is None else f"ends at offset {manifest.end} with commit {manifest.commit}"
        )
        raise StoreRefused(
            f"{ids} {shows}, but {' and '.join(seen)} were committed after that: the manifest is gone or was replaced by "
            f"an older one, and a node that continued from it would delete them. Put the newest version of "
            f"{ids.manifest_key} back, then start again. Nothing of the partition was changed; delete nothing"
        )
    return loaded


async def _committed_beyond(context: TierContext, ids: Ids, manifest: Manifest | None) -> Sequence[str]:
    """Keys of unreferenced sidecars whose segments a commit must have named; empty if there are none."""
    store = await context.store()
    known, end = (set(manifest.keys()), manifest.end) if manifest is not None else (set[str](), 0)
    beyond: list[Span] = []
    async for info in store.list(ids.segments_prefix, start_after=f"{ids.segments_prefix}{end:020d}"):
        try:
            parsed = keys.parse(info.key)
            if info.key in known or not isinstance(parsed, keys.SidecarKey):
                continue
            if manifest is None and parsed.base > 0:
                return [info.key]
            data = (await store.get(info.key, 0, sidecar.HEAD_BYTES)).data
            found = sidecar.read_head(data, info.key)
        except (ValueError, TierCorrupt, TierObjectMissing):
            continue
        beyond.append(Span(found.base, found.end, info.key))
        if len(beyond) == MAX_LOOKED_INTO:
            break
    return follow_one_another(beyond) or ()


async def _highest_producer(context: TierContext, manifest: Manifest) -> int:
    newest = manifest.sidecar
    if newest is None or manifest.state is State.DELETED:
        return NO_PRODUCER_ID
    position, length = sidecar.span(newest.sections, sidecar.STATE)

    async def attempt() -> bytes:
        return (await (await context.store()).get(newest.key, position, length)).data

    data = await context.reads.retry_until_deadline(f"bytes of {newest.key}", attempt)
    part = sidecar.parse_part(
        data, position, newest.sections, base=0, end=manifest.end, length=0, crc=0, where=newest.key
    )
    if not part.producer_state:
        return NO_PRODUCER_ID
    producers = ProducerStateManager.restore(part.producer_state, now_ms=0).producers
    return max(producers, default=NO_PRODUCER_ID)


def _reached_at(manifest: Manifest) -> int:
    """The time (ms) of the commit that set `end`; 0 if `end` is 0. It may differ from `committed_at`, because the last commit
    may be a claim or an expiry."""
    if manifest.end == 0:
        return 0
    segments = [*manifest.segments, *(item.segment for item in manifest.removed if item.segment is not None)]
    return max(
        (segment.added.time_ms for segment in segments if segment.end == manifest.end), default=manifest.committed_at
    )
