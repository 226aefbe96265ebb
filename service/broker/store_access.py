"""This start's right to write to the bucket: the probe, then the next incarnation in `cluster.json`.

Until both are done nothing is uploaded, retired, evicted or deleted; local data is served all the while. A store that does
not answer is asked again with back-off; one that is not ours any more (a copy of this directory has run) ends the node. One
that shows a lower incarnation than this directory has held, or none, went backwards (I10): it stays untouched and is asked
again until it shows what it had.
"""

from __future__ import annotations

import asyncio
import base64
import logging

from service.http import Readiness
from service.metadata import planner
from service.metadata.image import MetadataImage
from service.metadata.log import MetadataLog
from storage_tiers import events
from storage_tiers.backoff import Backoff, BackoffSettings
from storage_tiers.clock import Clock, Rng
from storage_tiers.cold.manifest.cluster_file import ClusterState, Holder, is_taken_over
from storage_tiers.cold.manifest.model import Writer
from storage_tiers.cold.process.client import TierClient
from storage_tiers.errors import Advice, FencedWriter, LogError, StoreBehind, TierUnavailable

log = logging.getLogger(__name__)

#: Seconds between probes of a store that does not answer.
PROBE_BACKOFF = BackoffSettings(0.5, 30.0)


class StoreAccess:
    """`writer` is None until the store is ours for this start; `opened` is set then."""

    def __init__(
        self,
        client: TierClient,
        metadata: MetadataLog,
        *,
        node_id: int,
        directory_id: str,
        readiness: Readiness,
        clock: Clock,
        rng: Rng,
    ) -> None:
        self._client = client
        self._metadata = metadata
        self._node_id = node_id
        self._directory_id = directory_id
        self._readiness = readiness
        self._clock = clock
        self._rng = rng
        self.writer: Writer | None = None
        self.opened = asyncio.Event()
        #: Set while the store shows an older `cluster.json` than this directory has written, or none.
        self.behind: StoreBehind | None = None

    async def run(self) -> None:
        """Returns once the store is ours. Raises FencedWriter and StoreRefused: the node must not go on with it."""
        backoff = Backoff(PROBE_BACKOFF, self._rng)
        while self.writer is None:
            try:
                await self._open()
                break
            except StoreBehind as error:
                if self.behind is None:
                    events.error(log, "store.went_backwards", error=error)
                self.behind = error
                self._readiness.store = str(error)
            except LogError as error:
                if error.advice is not Advice.RETRY:
                    self._readiness.store = str(error)
                    raise
                self._readiness.store = f"does not answer: {error}"
            self._readiness.probed = True
            await self._clock.sleep(backoff.next_delay())
        self._opened()

    def take(self, writer: Writer) -> None:
        """The store has been claimed for this start already, by a take-over."""
        self.writer = writer
        self._opened()

    async def store_ms(self) -> int:
        """The store's clock (ms since 1970). TierUnavailable if it has not been opened, or does not answer."""
        if self.writer is None:
            raise TierUnavailable("the store has not been opened yet; ask again")
        return await self._client.store_time(f"{self._metadata.image.cluster_id}/")

    def _opened(self) -> None:
        self.behind = None
        self._readiness.store = "ok"
        self._readiness.probed = True
        self.opened.set()

    async def _open(self) -> None:
        began = self._clock.monotonic()
        cluster_id = self._metadata.image.cluster_id
        await self._client.probe(f"{cluster_id}/")
        found = await self._client.read_cluster(cluster_id)
        number = settle(found, self._metadata.image, self._directory_id)
        start_id = self._rng.token(16)
        await self._metadata.propose(planner.claim_incarnation(self._node_id, number + 1, start_id))
        holder = Holder(self._node_id, self._directory_id, text_of(start_id))
        incarnation = await self._client.open_cluster(cluster_id, holder, number)
        await self._metadata.propose(planner.confirm_incarnation(incarnation, start_id))
        self.writer = Writer(self._node_id, incarnation)
        took_ms = round((self._clock.monotonic() - began) * 1000)
        events.info(log, "store.opened", cluster_id=cluster_id, incarnation=incarnation, ms=took_ms)


def settle(found: ClusterState | None, image: MetadataImage, directory_id: str) -> int:
    """The incarnation to swap from: the one that this directory knows as its own, or one that an earlier start of it
    claimed without seeing the answer. FencedWriter if the bucket holds a higher one, or an equal one of another start,
    or a lower one by which another directory took the cluster over; StoreBehind if it holds another lower one or none although
    this directory has had one."""
    number = found.incarnation if found is not None else 0
    if found is not None:
        claims = {(start.incarnation, text_of(start.start_id)) for start in image.unconfirmed_starts}
        if (number, found.holder.start_id) in claims | {(image.incarnation, text_of(image.start_id))}:
            return number
    if found is None and image.incarnation == 0:
        return 0
    if number < image.incarnation and not (found is not None and is_taken_over(found, directory_id, image.incarnation)):
        shows = "has no cluster.json" if found is None else f"is at incarnation {number}"
        raise StoreBehind(
            f"the bucket went backwards: cluster {image.cluster_id} {shows} there, and this directory has held incarnation "
            f"{image.incarnation}. Local data is served; nothing is uploaded, evicted or deleted before the bucket shows it "
            "again. Put the bucket back as it was, or correct --store if this is another one; delete nothing"
        )
    raise FencedWriter(
        f"the bucket is at incarnation {number} of cluster {image.cluster_id}, held by another start than this "
        f"directory's (which is at {image.incarnation}): a copy of it has run, the cluster was taken over, or the "
        "store is another one. Stop this node; the one that began last goes on. If its disk is lost and this directory is an "
        f"older copy of it, keep this one and start on another, empty --data-dir with --take-over {image.cluster_id}"
    )


def text_of(start_id: bytes) -> str:
    return base64.urlsafe_b64encode(start_id).rstrip(b"=").decode()
