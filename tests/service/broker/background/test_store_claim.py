"""A broker of another process's controller writes under the incarnation that its store and its metadata both show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.broker.background.store_claim import ClusterClaim
from service.metadata.image import MetadataImage
from service.metadata.parts import StartImage
from storage_tiers.cold.manifest.cluster_file import ClusterState, Holder
from storage_tiers.errors import LogError, StoreBehind, TierUnavailable
from storage_tiers.uuids import uuid_text

ID = "a-cluster"
MINE, NEXT, OTHER = b"1" * 16, b"2" * 16, b"3" * 16
IMAGE = replace(MetadataImage(), cluster_id=ID, incarnation=5, start_id=MINE)
CLAIMING = replace(IMAGE, unconfirmed_starts=(StartImage(1, 6, NEXT),))


class Followed:
    """Metadata as a broker follows them."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image


def shown(incarnation: int, start_id: bytes) -> ClusterState:
    return ClusterState(ID, incarnation, Holder(1, "directory", uuid_text(start_id)))


@pytest.mark.parametrize(
    ("image", "found", "refusal"),
    [
        pytest.param(IMAGE, shown(5, MINE), None, id="as confirmed"),
        pytest.param(CLAIMING, shown(6, NEXT), None, id="claimed, not confirmed yet"),
        pytest.param(IMAGE, shown(6, NEXT), TierUnavailable, id="a claim not learnt of yet"),
        pytest.param(IMAGE, shown(5, OTHER), TierUnavailable, id="another start's claim of that number"),
        pytest.param(IMAGE, shown(4, OTHER), StoreBehind, id="an older store"),
        pytest.param(IMAGE, None, StoreBehind, id="another store"),
    ],
)
def test_the_store_is_compared_with_the_metadata(
    image: MetadataImage, found: ClusterState | None, refusal: type[LogError] | None
) -> None:
    claim = ClusterClaim(Followed(image))  # type: ignore[arg-type]
    if refusal is None:
        claim.check(found)
    else:
        with pytest.raises(refusal):
            claim.check(found)


async def test_nothing_is_written_before_the_controller_has_claimed_the_store() -> None:
    claim = ClusterClaim(Followed(MetadataImage()))  # type: ignore[arg-type]
    with pytest.raises(TierUnavailable, match="the controller has not opened the store yet"):
        await claim.made(None)  # type: ignore[arg-type]
