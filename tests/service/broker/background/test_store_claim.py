"""A broker of another process's controller writes under the incarnation that its store and its metadata both show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.broker.background.store_access import StoreAccess
from service.broker.background.store_claim import ClusterClaim, settle
from service.lifecycle.readiness import Readiness
from service.metadata.image import MetadataImage
from service.metadata.parts import StartImage
from storage_tiers.cold.manifest.cluster_file import ClusterState, Holder
from storage_tiers.errors import FencedWriter, LogError, StoreBehind, TierUnavailable
from storage_tiers.uuids import uuid_text
from tests.support.clock import ManualClock, SeededRng

ID = "a-cluster"
MINE, NEXT, OTHER = b"1" * 16, b"2" * 16, b"3" * 16
IMAGE = replace(MetadataImage(), cluster_id=ID, incarnation=5, start_id=MINE)
CONFIRMED = replace(IMAGE, incarnation=6, start_id=NEXT)
CLAIMING = replace(IMAGE, unconfirmed_starts=(StartImage(1, 6, NEXT),))


class Followed:
    """The metadata that a broker has received."""

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


class Answering:
    """A store that shows `found`, while the metadata becomes that of the next claim."""

    def __init__(self, followed: Followed, found: ClusterState) -> None:
        self._followed = followed
        self._found = found

    async def ask(self, _: object) -> ClusterState:
        self._followed.image = CONFIRMED
        return self._found


@pytest.mark.parametrize("found", [shown(5, MINE), shown(6, NEXT)])
async def test_a_claim_during_the_stores_answer_makes_the_broker_ask_again(found: ClusterState) -> None:
    """Otherwise the broker would write under the earlier claim from then on, or report that the store went backwards."""
    followed = Followed(IMAGE)
    claim = ClusterClaim(followed)  # type: ignore[arg-type]
    with pytest.raises(TierUnavailable):
        await claim.made(Answering(followed, found))  # type: ignore[arg-type]
    assert await claim.made(Answering(followed, shown(6, NEXT))) == 6  # type: ignore[arg-type]


async def test_a_claim_during_the_stores_answer_is_no_store_that_went_backwards() -> None:
    followed = Followed(IMAGE)
    client = Answering(followed, shown(5, MINE))
    access = StoreAccess(
        client,  # type: ignore[arg-type]
        followed,  # type: ignore[arg-type]
        ClusterClaim(followed),  # type: ignore[arg-type]
        node_id=2,
        readiness=Readiness(),
        clock=ManualClock(),
        rng=SeededRng(1),
        grace_ms=lambda: 0,
    )
    await access.look()
    assert access.behind is None
    await access.look()
    assert access.behind is not None


@pytest.mark.parametrize(
    ("image", "found", "expected"),
    [
        pytest.param(MetadataImage(), None, 0, id="a new cluster"),
        pytest.param(IMAGE, shown(5, MINE), 5, id="as confirmed"),
        pytest.param(CLAIMING, shown(6, NEXT), 6, id="a claim whose answer was lost"),
        pytest.param(IMAGE, None, StoreBehind, id="the file is gone"),
        pytest.param(CLAIMING, None, StoreBehind, id="the file is gone during a claim"),
        pytest.param(IMAGE, shown(4, MINE), StoreBehind, id="an older store"),
        pytest.param(IMAGE, shown(5, OTHER), FencedWriter, id="another start's claim of that number"),
        pytest.param(IMAGE, shown(6, OTHER), FencedWriter, id="a later claim"),
    ],
)
def test_the_controllers_node_replaces_only_a_claim_that_its_directory_knows(
    image: MetadataImage, found: ClusterState | None, expected: int | type[LogError]
) -> None:
    if isinstance(expected, int):
        assert settle(found, image, "directory") == expected
    else:
        with pytest.raises(expected):
            settle(found, image, "directory")


async def test_nothing_is_written_before_the_controller_has_claimed_the_store() -> None:
    claim = ClusterClaim(Followed(MetadataImage()))  # type: ignore[arg-type]
    with pytest.raises(TierUnavailable, match="the controller has not opened the store yet"):
        await claim.made(None)  # type: ignore[arg-type]
