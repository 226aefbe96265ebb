"""Obtains this start's right to write to the bucket: a probe, then the claim of an incarnation (`store_claim.py`).

Until both are done nothing is offloaded, expired, evicted or deleted; local data is served throughout. An unresponsive store is
retried with back-off. If another start holds the store (a copy of this directory has run), the node ends. A store that shows
a lower incarnation than this directory has held, or none, went backwards (I10). The node does not write to it, and reads it
again until it shows its newest state or is repaired. A running node reads `cluster.json` again once a day, or once per grace
if that is shorter. If the file has gone backwards, nothing more is deleted, evicted or offloaded. If another start has
claimed the store, the node ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from service.broker.background.store_claim import OwnClaim, StoreClaim
from service.lifecycle.readiness import Readiness
from service.metadata.following import Metadata
from service.metadata.image import MetadataImage
from storage_tiers import events
from storage_tiers.backoff import Backoff, BackoffSettings
from storage_tiers.clock import Clock, Rng
from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.cluster_file import TAKE_OVER_GAP, ClusterState
from storage_tiers.cold.manifest.model import ManifestWriter
from storage_tiers.cold.process.client import TierClient
from storage_tiers.cold.process.cluster_operations import (
    HighestIncarnation,
    Probe,
    ReadStoreTime,
    RecreateCluster,
    ShownCluster,
)
from storage_tiers.cold.process.operations import ListKeys
from storage_tiers.cold.segments.repairer import RepairReport
from storage_tiers.errors import Advice, FencedWriter, LogError, StoreBehind, TierUnavailable

log = logging.getLogger(__name__)

#: Seconds between probes of a store that does not answer.
PROBE_BACKOFF = BackoffSettings(0.5, 30.0)
#: Seconds between two checks of `cluster.json` by a running node; with a shorter grace, one per grace.
LONGEST_LOOK_PAUSE_S = 86_400.0
#: Seconds that a repair waits for the claim that it enables.
CLAIM_PATIENCE_S = 30.0
#: The reason why a broker whose controller is in another process does not repair the cluster's files.
ASK_THE_CONTROLLER = (
    "the node with the cluster's controller writes cluster.json and topic.json: repair them through that node"
)


class StoreAccess:
    """`writer` is None until this start has claimed the store; `opened` is set then."""

    def __init__(
        self,
        client: TierClient,
        metadata: Metadata,
        claim: StoreClaim,
        *,
        node_id: int,
        readiness: Readiness,
        clock: Clock,
        rng: Rng,
        grace_ms: Callable[[], int],
    ) -> None:
        self._claim = claim
        self._node_id = node_id
        self._grace_ms = grace_ms
        self._looked_at = clock.monotonic()
        self._wake = asyncio.Event()
        self.client = client
        self._metadata = metadata
        self._seen = metadata.image.incarnation
        self._readiness = readiness
        self._clock = clock
        self._rng = rng
        self.writer: ManifestWriter | None = None
        self.opened = asyncio.Event()
        #: Set after the first attempt to open the store, unless `run` raised. Readiness reports the result.
        self.tried = asyncio.Event()
        #: Set while the store shows an older `cluster.json` than this directory has written, or none.
        self.behind: StoreBehind | None = None

    @property
    def is_open(self) -> bool:
        """Whether this start has claimed the store, and neither the store nor the metadata shows a state before the claim."""
        if self.writer is None or self.behind is not None:
            return False
        return self._metadata.image.incarnation >= (self.writer.incarnation or 0)

    @property
    def writes_cluster(self) -> bool:
        """Whether this node writes the files of the whole cluster."""
        return self._claim.writes_cluster

    @property
    def preview_writer(self) -> ManifestWriter:
        """The writer of this start, for requests that change nothing. It exists even before the claim."""
        return self.writer or ManifestWriter(self._node_id, self._metadata.image.incarnation)

    async def run(self) -> None:
        """Returns when this start has claimed the store. Raises FencedWriter or StoreRefused if the node must not use it."""
        self._metadata.subscribe(self._changed)
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
        """Sleeps. A repair or a new incarnation ends the sleep early."""
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
        """Opens the store with the claim that a take-over has made for this start."""
        self.writer = writer
        self._opened()

    async def store_ms(self) -> int:
        """The store's clock (ms since 1970). Raises TierUnavailable if the store has not been opened, or does not answer."""
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
        """Checks `cluster.json` when due: once per day or grace, and at each call while the store is behind. Raises
        FencedWriter if another start has claimed the cluster."""
        pause_s = min(LONGEST_LOOK_PAUSE_S, self._grace_ms() / 1000)
        if self.writer is None or (self.behind is None and self._clock.monotonic() - self._looked_at < pause_s):
            return
        await self.look()

    def _changed(self, image: MetadataImage, _: object) -> None:
        """Uses the incarnation under which a controller in another process has claimed the store, perhaps again."""
        if image.incarnation == self._seen:
            return
        self._seen = image.incarnation
        self._wake.set()
        if self.writer is not None and self._seen > (self.writer.incarnation or 0):
            self.writer = ManifestWriter(self._node_id, self._seen)

    async def look(self) -> None:
        """Compares the store's current `cluster.json` with this start's claim."""
        image = self._metadata.image
        found = await self.client.ask(ShownCluster(image.cluster_id))
        if self._metadata.image.incarnation != image.incarnation:
            return  # the answer may be older than the new claim, and the next tick looks again
        try:
            self._claim.check(found)
        except StoreBehind as error:
            self._looked_at = self._clock.monotonic()
            self._report_behind(error)
            return
        self._looked_at = self._clock.monotonic()
        if self.behind is not None:
            self.behind = None
            self._readiness.store = "ok"
            events.info(log, "store.cluster_back", incarnation=image.incarnation)

    async def repair(self, *, apply: bool) -> tuple[RepairReport, int]:
        """Rewrites `cluster.json` if the store has none, or an older one than this directory has held. Returns the report and
        the incarnation written, 0 if none was. The incarnation is never below one that the bucket shows. Raises TierUnavailable
        if the store has not answered since the start."""
        image, claim = self._metadata.image, self._claim
        if not isinstance(claim, OwnClaim):
            return RepairReport(refused=ASK_THE_CONTROLLER), 0
        if refused := await self.nothing_there():
            return RepairReport(refused=refused), 0
        found = await self.client.ask(ShownCluster(image.cluster_id))
        if apply and self.writer is None and self.behind is None:
            raise TierUnavailable("the object store has not answered yet, or this node has not claimed it; retry")
        try:
            claim.check(found)
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
            start_id = await claim.noted(number)
        shown = ClusterState(image.cluster_id, number, claim.holder(start_id))
        await self.client.ask(RecreateCluster(shown, found))
        events.info(log, "cluster.repaired", incarnation=number)
        if self.writer is not None:
            await self.look()
            return report, number
        self._wake.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLAIM_PATIENCE_S):
                await self.opened.wait()
        return report, number

    async def nothing_there(self) -> str:
        """The refusal of a repair if the store holds no object of a cluster that once had a store. Empty if it holds one, or if
        the cluster never had a store."""
        image = self._metadata.image
        if image.incarnation == 0:
            return ""
        listed = await self.client.ask(ListKeys(keys.cluster_prefix(image.cluster_id), ""))
        if any(keys.is_key(each.key) for each in listed.keys):
            return ""
        return (
            f"the store holds nothing of cluster {image.cluster_id}, so nothing is written there: it is not the store to which "
            "this node has written, or it was emptied. Check --store, its prefix, and --s3-endpoint, and correct them. If they "
            "are right, put the bucket back"
        )

    async def _open(self) -> None:
        began = self._clock.monotonic()
        cluster_id = self._metadata.image.cluster_id
        await self.client.ask(Probe(f"{cluster_id}/"))
        incarnation = await self._claim.made(self.client)
        self.writer = ManifestWriter(self._node_id, incarnation)
        took_ms = round((self._clock.monotonic() - began) * 1000)
        events.info(log, "store.opened", cluster_id=cluster_id, incarnation=incarnation, ms=took_ms)
