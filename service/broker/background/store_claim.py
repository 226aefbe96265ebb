"""Decides under which incarnation a start of a broker may write to the bucket.

`cluster.json` has one incarnation for the whole cluster. The node with the cluster's controller claims the next number by a
compare-and-swap (`OwnClaim`). A broker of that controller claims nothing: it writes under the incarnation that the controller
has confirmed in the metadata, after it has seen the same number in its own store (`ClusterClaim`). So all brokers of a cluster
write to one bucket, and a take-over fences all of them.

Invariants: no claim replaces a number that the directory does not know; a broker that knows a higher number than the store
shows writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from service.broker.background.older_copy import advice_if_lost, check_snapshot, check_topics
from service.metadata.commands import ClaimIncarnation, ConfirmIncarnation
from service.metadata.controller import Commands
from service.metadata.following import Metadata
from service.metadata.image import MetadataImage
from storage_tiers.clock import Rng
from storage_tiers.cold.manifest.cluster_file import ClusterState, Holder, is_taken_over
from storage_tiers.cold.process.client import TierClient
from storage_tiers.cold.process.cluster_operations import OpenCluster, ShownCluster
from storage_tiers.errors import FencedWriter, StoreBehind, TierUnavailable
from storage_tiers.uuids import uuid_text


class StoreClaim(Protocol):
    """The claim of one start. `writes_cluster` tells whether this node writes the files of the whole cluster: `cluster.json`,
    the topics' files, snapshots of the metadata."""

    writes_cluster: bool

    async def made(self, client: TierClient) -> int:
        """Returns the incarnation under which this start writes. Raises the errors of `check` and those of the store."""

    def check(self, found: ClusterState | None) -> None:
        """Compares `found`, the store's `cluster.json` or None without one, with this claim. Raises StoreBehind if the store
        went backwards, FencedWriter if another start holds the cluster, TierUnavailable if this broker's metadata does not have
        the store's claim yet."""


class OwnClaim:
    """The claim of a node with a controller. `may_be_copy()` tells whether the directory may be an older copy. If it may, its
    metadata is compared with the bucket's topics before the claim."""

    writes_cluster = True

    def __init__(
        self,
        metadata: Metadata,
        controller: Commands,
        rng: Rng,
        *,
        node_id: int,
        directory_id: str,
        may_be_copy: Callable[[], bool],
    ) -> None:
        self._metadata = metadata
        self._controller = controller
        self._rng = rng
        self._node_id = node_id
        self._directory_id = directory_id
        self._may_be_copy = may_be_copy

    async def made(self, client: TierClient) -> int:
        cluster_id = self._metadata.image.cluster_id
        found = await client.ask(ShownCluster(cluster_id))
        number = settle(found, self._metadata.image, self._directory_id)
        await check_snapshot(client, self._metadata, number)
        if self._may_be_copy():
            await check_topics(client, self._metadata.image)
        start_id = await self.noted(number + 1)
        incarnation = await client.ask(OpenCluster(cluster_id, self.holder(start_id), number))
        await self._controller.execute(ConfirmIncarnation(incarnation, start_id))
        return incarnation

    async def noted(self, incarnation: int) -> bytes:
        """Records a claim of that number in the metadata before the compare-and-swap, and returns its start id. So the claim is
        recognized even if the store's answer is lost."""
        start_id = self._rng.token(16)
        await self._controller.execute(ClaimIncarnation(self._node_id, incarnation, start_id))
        return start_id

    def check(self, found: ClusterState | None) -> None:
        settle(found, self._metadata.image, self._directory_id)

    def holder(self, start_id: bytes) -> Holder:
        """A start of this node, as `cluster.json` records it."""
        return Holder(self._node_id, self._directory_id, uuid_text(start_id))


class ClusterClaim:
    """The claim of a broker whose controller is in another process: the broker uses the controller's claim."""

    writes_cluster = False

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    async def made(self, client: TierClient) -> int:
        image = self._metadata.image
        if image.incarnation == 0:
            raise TierUnavailable("the controller has not opened the store yet: its log says why")
        found = await client.ask(ShownCluster(image.cluster_id))
        if self._metadata.image.incarnation != image.incarnation:  # the answer may be older than the new claim
            raise TierUnavailable("the controller has claimed the store again meanwhile")
        self.check(found)
        return image.incarnation

    def check(self, found: ClusterState | None) -> None:
        image = self._metadata.image
        if found is not None and settles(found, image):
            return
        if found is None or found.incarnation < image.incarnation:
            raise went_backwards(found, image)
        raise TierUnavailable(
            f"cluster.json in the bucket is at incarnation {found.incarnation}, and the controller has confirmed "
            f"{image.incarnation}: the controller is starting, or the cluster was taken over"
        )


def settles(found: ClusterState, image: MetadataImage) -> bool:
    """Whether the bucket shows a start of this directory: the last one, or a claim whose answer was lost."""
    claims = {(start.incarnation, uuid_text(start.start_id)) for start in image.unconfirmed_starts}
    return (found.incarnation, found.holder.start_id) in claims | {(image.incarnation, uuid_text(image.start_id))}


def settle(found: ClusterState | None, image: MetadataImage, directory_id: str) -> int:
    """The incarnation that the compare-and-swap expects: this directory's own, or that of an earlier start's claim whose answer
    was lost. Raises FencedWriter if the bucket has a higher incarnation, an equal one of another start, or a lower one with
    which another directory took the cluster over. Raises StoreBehind if it has any other lower incarnation, or has none
    although this directory has held one."""
    number = found.incarnation if found is not None else 0
    if found is not None and settles(found, image):
        return number
    if found is None and image.incarnation == 0:
        return 0
    if number < image.incarnation and not (found is not None and is_taken_over(found, directory_id, image.incarnation)):
        raise went_backwards(found, image)
    raise FencedWriter(
        f"the bucket is at incarnation {number} of cluster {image.cluster_id}, claimed by another start than this "
        f"directory's (which is at {image.incarnation}): a copy of this directory has run, the cluster was taken over, or the "
        "store is another one. Stop this node; the one that started last owns the cluster. "
        f"{advice_if_lost(image, 'If its disk is lost and this directory is an older copy of it')}"
    )


def went_backwards(found: ClusterState | None, image: MetadataImage) -> StoreBehind:
    """The error of a store that shows a lower incarnation than the metadata, or none."""
    shows = "has no cluster.json" if found is None else f"is at incarnation {found.incarnation}"
    return StoreBehind(
        f"the bucket went backwards: cluster {image.cluster_id} {shows} there, and this directory has held incarnation "
        f"{image.incarnation}. Local data is served; nothing is offloaded, evicted or deleted until the bucket shows that "
        "incarnation again. Put the bucket back as it was, or correct --store; delete nothing. If that version "
        "of cluster.json is gone for good, see what `tidelog cold repair --cluster` would write"
    )
