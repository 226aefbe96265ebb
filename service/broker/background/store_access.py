"""This start's right to write to the bucket: the probe, then the next incarnation in `cluster.json`.

Until both are done nothing is offloaded, expired, evicted or deleted; local data is served throughout. An unresponsive store is
retried with back-off. If another start holds the store (a copy of this directory has run), the node ends. A store that shows
a lower incarnation than this directory has held, or none, went backwards (I10): it stays untouched and is read again until it
shows its newest state or is repaired. A running node reads the file again once a day or grace period: if it has gone
backwards, nothing more is deleted, evicted or offloaded; if another start has taken the store, the node ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from service.broker.background.older_copy import check_not_older
from service.lifecycle.readiness import Readiness
from service.metadata.commands import ClaimIncarnation, ConfirmIncarnation
from service.metadata.controller import Controller
from service.metadata.image import MetadataImage
from service.metadata.log import MetadataLog
from storage_tiers import events
from storage_tiers.backoff import Backoff, BackoffSettings
from storage_tiers.clock import Clock, Rng
from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.cluster_file import TAKE_OVER_GAP, ClusterState, Holder, is_taken_over
from storage_tiers.cold.manifest.model import ManifestWriter
from storage_tiers.cold.process.client import TierClient
from storage_tiers.cold.process.cluster_operations import (
    HighestIncarnation,
    OpenCluster,
    Probe,
    ReadStoreTime,
    RecreateCluster,
    ShownCluster,
)
from storage_tiers.cold.process.operations import ListKeys
from storage_tiers.cold.segments.repairer import RepairReport
from storage_tiers.errors import Advice, FencedWriter, LogError, StoreBehind, TierUnavailable
from storage_tiers.uuids import uuid_text

log = logging.getLogger(__name__)

#: Seconds between probes of a store that does not answer.
PROBE_BACKOFF = BackoffSettings(0.5, 30.0)
#: Seconds between two checks of `cluster.json` by a running node; with a shorter grace, one per grace.
LONGEST_LOOK_PAUSE_S = 86_400.0
#: Seconds that a repair waits for the claim that it enables.
CLAIM_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Claimant:
    """The claimant of the store. `may_be_copy()` says whether the directory may be an older copy; it is compared before a
    claim."""

    node_id: int
    directory_id: str
    may_be_copy: Callable[[], bool]


class StoreAccess:
    """`writer` is None until the store is ours for this start; `opened` is set then."""

    def __init__(
        self,
        client: TierClient,
        metadata: MetadataLog,
        controller: Controller,
        claimant: Claimant,
        *,
        readiness: Readiness,
        clock: Clock,
        rng: Rng,
        grace_ms: Callable[[], int],
    ) -> None:
        self._claimant = claimant
        self._grace_ms = grace_ms
        self._looked_at = clock.monotonic()
        self._wake = asyncio.Event()
        self.client = client
        self._metadata = metadata
        self._controller = controller
        self._readiness = readiness
        self._clock = clock
        self._rng = rng
        self.writer: ManifestWriter | None = None
        self.opened = asyncio.Event()
        #: Set once the store has been tried, unless `run` raised; readiness reports the result.
        self.tried = asyncio.Event()
        #: Set while the store shows an older `cluster.json` than this directory has written, or none.
        self.behind: StoreBehind | None = None

    @property
    def is_open(self) -> bool:
        """Whether this start has claimed the store, and the store still shows the claim."""
        return self.writer is not None and self.behind is None

    @property
    def preview_writer(self) -> ManifestWriter:
        """The writer of this start, for questions that change nothing; also while the store is not this start's."""
        return self.writer or ManifestWriter(self._claimant.node_id, self._metadata.image.incarnation)

    async def run(self) -> None:
        """Returns when this start has claimed the store. FencedWriter or StoreRefused if the node must not use it."""
        backoff = Backoff(PROBE_BACKOFF, self._rng)
        while self.writer is None:
            try:
                await self._open()
                break
            except StoreBehind as error:
                self._report_behind(error)
            except LogError as error:
                if error.advice is not Advice.RETRY:
                    self._readiness.store = str(error)
                    raise
                self._readiness.store = f"does not answer: {error}"
            self._readiness.probed = True
            self.tried.set()
            await self._pause(backoff.next_delay())
        self._opened()

    async def _pause(self, seconds: float) -> None:
        """Sleeps, or less if a repair wakes it."""
        sleeping, woken = asyncio.ensure_future(self._clock.sleep(seconds)), asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait((sleeping, woken), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._wake.clear()
            for task in (sleeping, woken):
                task.cancel()

    def _report_behind(self, error: StoreBehind) -> None:
        if self.behind is None:
            events.error(log, "store.went_backwards", error=error)
        self.behind = error
        self._readiness.store = str(error)

    def take(self, writer: ManifestWriter) -> None:
        """The store has been claimed for this start already, by a take-over."""
        self.writer = writer
        self._opened()

    async def store_ms(self) -> int:
        """The store's clock (ms since 1970). TierUnavailable if it has not been opened, or does not answer."""
        if self.writer is None:
            raise TierUnavailable("the store has not been opened yet; retry")
        return await self.client.ask(ReadStoreTime(f"{self._metadata.image.cluster_id}/"))

    def _opened(self) -> None:
        self.behind = None
        self._looked_at = self._clock.monotonic()
        self._readiness.store = "ok"
        self._readiness.probed = True
        self.opened.set()
        self.tried.set()

    # --- while the node runs ------------------------------------------------------------------------------------------
    async def tick(self) -> None:
        """Checks `cluster.json` when due: once a day or grace, and at each call while it is behind. Raises FencedWriter if
        another start has claimed the cluster."""
        pause_s = min(LONGEST_LOOK_PAUSE_S, self._grace_ms() / 1000)
        if self.writer is None or (self.behind is None and self._clock.monotonic() - self._looked_at < pause_s):
            return
        await self.look()

    async def look(self) -> None:
        """Compares the store's current `cluster.json` with this start's claim."""
        image = self._metadata.image
        found = await self.client.ask(ShownCluster(image.cluster_id))
        self._looked_at = self._clock.monotonic()
        if found is not None and settles(found, image):
            if self.behind is not None:
                self.behind = None
                self._readiness.store = "ok"
                events.info(log, "store.cluster_back", incarnation=image.incarnation)
            return
        try:
            settle(found, image, self._claimant.directory_id)
        except StoreBehind as error:
            self._report_behind(error)

    async def repair(self, *, apply: bool) -> tuple[RepairReport, int]:
        """Rewrites `cluster.json` if the store has none, or an older one than this directory has held. Returns the report and
        the incarnation written, 0 if none was. The incarnation is never below one that the bucket shows. TierUnavailable if
        the store has not answered since the start."""
        image = self._metadata.image
        if refused := await self.nothing_there():
            return RepairReport(refused=refused), 0
        found = await self.client.ask(ShownCluster(image.cluster_id))
        if apply and self.writer is None and self.behind is None:
            raise TierUnavailable("the object store has not answered yet, or the node is new there; retry")
        try:
            settle(found, image, self._claimant.directory_id)
            return RepairReport(), 0
        except StoreBehind:
            pass
        except FencedWriter as error:
            return RepairReport(refused=str(error)), 0
        highest = await self.client.ask(HighestIncarnation(image.cluster_id))
        if highest.number > image.incarnation:
            return RepairReport(
                refused=f"{highest.key} has incarnation {highest.number}, and this directory has held {image.incarnation}: "
                "another node has continued the cluster. Stop this one; the node that started last owns the cluster"
            ), 0
        shows = "is gone" if found is None else f"shows incarnation {found.incarnation}"
        # A concurrent start may have claimed the next numbers without a trace in the bucket: leave a gap.
        number = image.incarnation + (0 if self.writer is not None else TAKE_OVER_GAP)
        report = RepairReport(
            f"{keys.cluster_key(image.cluster_id)} {shows}, and no object in the bucket has an incarnation above "
            f"{highest.number}: it is written again with this directory's incarnation {number}",
            checked=1,
        )
        if not apply:
            return report, 0
        start_id = image.start_id
        if self.writer is None:
            start_id = self._rng.token(16)
            await self._controller.execute(ClaimIncarnation(self._claimant.node_id, number, start_id))
        holder = Holder(self._claimant.node_id, self._claimant.directory_id, uuid_text(start_id))
        await self.client.ask(RecreateCluster(ClusterState(image.cluster_id, number, holder), found))
        events.info(log, "cluster.repaired", incarnation=number)
        if self.writer is not None:
            await self.look()
            return report, number
        self._wake.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.opened.wait(), CLAIM_PATIENCE_S)
        return report, number

    async def nothing_there(self) -> str:
        """Why a repair is refused: the store holds no object of a cluster that once had a store. Empty if it holds one, or the
        cluster never had a store."""
        image = self._metadata.image
        if image.incarnation == 0:
            return ""
        listed = await self.client.ask(ListKeys(keys.cluster_prefix(image.cluster_id), ""))
        if any(keys.is_key(each.key) for each in listed.keys):
            return ""
        return (
            f"the store holds nothing of cluster {image.cluster_id}, so nothing is written there: it is another store than the "
            "one that this node has written to, or it was emptied. Check --store, its prefix, and --s3-endpoint, and correct "
            "them. If they are right, put the bucket back"
        )

    async def _open(self) -> None:
        began = self._clock.monotonic()
        cluster_id = self._metadata.image.cluster_id
        await self.client.ask(Probe(f"{cluster_id}/"))
        found = await self.client.ask(ShownCluster(cluster_id))
        number = settle(found, self._metadata.image, self._claimant.directory_id)
        if self._claimant.may_be_copy():
            await check_not_older(self.client, self._metadata.image)
        start_id = self._rng.token(16)
        await self._controller.execute(ClaimIncarnation(self._claimant.node_id, number + 1, start_id))
        holder = Holder(self._claimant.node_id, self._claimant.directory_id, uuid_text(start_id))
        incarnation = await self.client.ask(OpenCluster(cluster_id, holder, number))
        await self._controller.execute(ConfirmIncarnation(incarnation, start_id))
        self.writer = ManifestWriter(self._claimant.node_id, incarnation)
        took_ms = round((self._clock.monotonic() - began) * 1000)
        events.info(log, "store.opened", cluster_id=cluster_id, incarnation=incarnation, ms=took_ms)


def settles(found: ClusterState, image: MetadataImage) -> bool:
    """Whether the bucket shows a start of this directory: the last one, or a claim whose answer was lost."""
    claims = {(start.incarnation, uuid_text(start.start_id)) for start in image.unconfirmed_starts}
    return (found.incarnation, found.holder.start_id) in claims | {(image.incarnation, uuid_text(image.start_id))}


def settle(found: ClusterState | None, image: MetadataImage, directory_id: str) -> int:
    """The incarnation that the compare-and-swap expects: this directory's own, or one that an earlier start claimed and whose
    answer was lost. FencedWriter if the bucket has a higher one, an equal one of another start, or a lower one by which another
    directory took the cluster over. StoreBehind if it has any other lower one, or none although this directory has had one."""
    number = found.incarnation if found is not None else 0
    if found is not None and settles(found, image):
        return number
    if found is None and image.incarnation == 0:
        return 0
    if number < image.incarnation and not (found is not None and is_taken_over(found, directory_id, image.incarnation)):
        shows = "has no cluster.json" if found is None else f"is at incarnation {number}"
        raise StoreBehind(
            f"the bucket went backwards: cluster {image.cluster_id} {shows} there, and this directory has held incarnation "
            f"{image.incarnation}. Local data is served; nothing is offloaded, evicted or deleted until the bucket shows that "
            "incarnation again. Put the bucket back as it was, or correct --store; delete nothing. If that version "
            "of cluster.json is gone for good, see what `tidelog cold repair --cluster` would write"
        )
    raise FencedWriter(
        f"the bucket is at incarnation {number} of cluster {image.cluster_id}, claimed by another start than this "
        f"directory's (which is at {image.incarnation}): a copy of this directory has run, the cluster was taken over, or the "
        "store is another one. Stop this node; the one that started last owns the cluster. If its disk is lost and this "
        "directory is an "
        f"older copy of it, keep this one and start on another, empty --data-dir with --take-over {image.cluster_id}"
    )
