"""The feature levels of a cluster, and when they may change."""

from __future__ import annotations

import pytest

from grpc_api.contract.features import FeatureChange, FeatureUpdate
from service.metadata import features, planner, registrations
from service.metadata import records_pb2 as pb
from service.metadata.image import MetadataImage
from service.metadata.snapshot import to_records
from storage_tiers.errors import InvalidUpdateVersion
from tests.service.metadata.records import broker

NAME = "transaction.version"
UP, DOWN = FeatureChange.UPGRADE, FeatureChange.SAFE_DOWNGRADE


def founded() -> MetadataImage:
    image = MetadataImage()
    image = image.apply_batch(planner.found_cluster(image, "cluster"))
    return image.apply_batch(registrations.register(image, 1, b"disk", (), None).records)


def levels(image: MetadataImage) -> dict[str, int]:
    return {each.name: each.finalized for each in features.features(image) if each.finalized}


def updated(image: MetadataImage, level: int, change: FeatureChange = UP) -> MetadataImage:
    return image.apply_batch(features.update(image, [FeatureUpdate(NAME, level, change)], 1))


def supports(number: int, *levels: tuple[str, int, int]) -> pb.MetadataRecord:
    registered = broker(number)
    for name, lowest, highest in levels:
        registered.broker.features.add(name=name, lowest=lowest, highest=highest)
    return registered


def test_a_new_cluster_has_the_highest_levels() -> None:
    assert levels(founded()) == {"metadata.version": 29, NAME: 2}


def test_a_cluster_without_recorded_levels_has_the_lowest_and_can_be_updated() -> None:
    image = MetadataImage().apply(pb.MetadataRecord(cluster=pb.ClusterRecord(cluster_id="cluster")))
    assert planner.found_cluster(image, "cluster") == (), "the cluster is not a new one"
    image = image.apply_batch(registrations.register(image, 1, b"disk", (), None).records)
    assert levels(image) == {"metadata.version": 29}
    assert levels(updated(image, 2)) == {"metadata.version": 29, NAME: 2}


def test_a_level_that_goes_to_0_stays_there() -> None:
    image = updated(founded(), 0, DOWN)
    assert levels(image) == {"metadata.version": 29}
    again = MetadataImage().apply_batch(to_records(image))
    assert levels(again) == {"metadata.version": 29}
    assert again.brokers == image.brokers, "a snapshot has what brokers support"


def test_nothing_is_recorded_for_a_level_that_stays() -> None:
    image = founded()
    for change in FeatureChange:
        assert features.update(image, [FeatureUpdate(NAME, 2, change)], 1) == ()


@pytest.mark.parametrize(
    ("registered", "problem"),
    [
        ((), "Broker 2 does not support this feature."),
        (((NAME, 0, 1),), "Broker 2 only supports versions 0-1"),
        (((NAME, 0, 2),), None),
        ((("other", 0, 2),), "Broker 2 does not support this feature."),
    ],
)
def test_a_level_rises_only_where_every_broker_supports_it(
    registered: tuple[tuple[str, int, int], ...], problem: str | None
) -> None:
    image = updated(founded(), 0, DOWN).apply(supports(2, *registered))
    if problem is None:
        assert levels(updated(image, 2))[NAME] == 2
        return
    with pytest.raises(InvalidUpdateVersion, match=problem):
        updated(image, 2)
    assert NAME not in levels(image)


def test_a_broker_that_starts_with_newer_software_unblocks_the_level() -> None:
    image = updated(founded(), 0, DOWN).apply(broker(2))
    with pytest.raises(InvalidUpdateVersion):
        updated(image, 2)
    image = image.apply_batch(registrations.register(image, 2, b"disk", (), None).records)
    assert levels(updated(image, 2))[NAME] == 2


def test_a_take_over_names_the_cluster_without_new_levels() -> None:
    image = MetadataImage()
    assert levels(image.apply_batch(planner.name_cluster(image, "cluster"))) == {"metadata.version": 29}
