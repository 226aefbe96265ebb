"""The other brokers of a cluster: the leader of a partition, and its address."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from grpc_api.contract.caller import Caller
from grpc_api.contract.coordinator_errors import CoordinatorNotAvailable
from grpc_api.contract.groups import LostEnd, LowerOffsets
from grpc_api.contract.transactions import AddPartitions, Markers, PartitionsAdded, ProducerIdAndEpoch
from service.broker.coordinators.peers import GroupCoordinators, Peers, RoutedCoordinator
from service.metadata.following import Listener
from service.metadata.image import MetadataImage
from service.metadata.internal_topics import CONSUMER_OFFSETS
from service.metadata.registrations import register
from storage_tiers.clock import SystemClock
from storage_tiers.types import TopicPartition
from tests.service.metadata.records import elected, new_topic
from tests.support.clock import SeededRng

T0 = TopicPartition("t", 0)
PRODUCER = ProducerIdAndEpoch(7, 0)
CALLER = Caller("User:ANONYMOUS", "", "")


class Known:
    """Metadata that a test sets (`Metadata`)."""

    refused, term, last_index, applied, path = 0, 1, 1, (1, 1), ""
    controller_id: int | None = None

    def __init__(self, image: MetadataImage) -> None:
        self.image = image

    def subscribe(self, listener: Listener) -> Any: ...

    async def close(self) -> None: ...


def registered(image: MetadataImage, broker_id: int, peer: str) -> MetadataImage:
    return image.apply_batch(register(image, broker_id, b"disk", (), None, peer=peer).records)


@pytest.fixture
def known() -> Known:
    """This broker is 1; 2 leads t-0, and has an address where nothing listens."""
    image = registered(registered(MetadataImage(), 1, "127.0.0.1:1"), 2, "127.0.0.1:1")
    return Known(image.apply_batch(new_topic("t", 1, leader=2)))


@pytest.fixture
async def peers(known: Known) -> AsyncIterator[Peers]:
    made = Peers(known, 1, SystemClock(), SeededRng(1))
    yield made
    await made.close()


async def test_another_leader_is_named_and_this_broker_or_none_is_not(known: Known, peers: Peers) -> None:
    assert peers.leader_of(T0) == 2
    assert peers.leader_of(TopicPartition("t", 9)) is None
    for leader in (1, -1):
        known.image = known.image.apply(elected(1, 0, leader))
        assert peers.leader_of(T0) is None


async def test_a_broker_is_reached_where_it_last_registered(known: Known, peers: Peers) -> None:
    assert peers.transactions(2)._address == "127.0.0.1:1"
    channel = peers._channels[2]
    peers.transactions(2)
    assert peers._channels[2] is channel, "one channel for each address"
    known.image = registered(known.image, 2, "127.0.0.1:2")
    assert peers.transactions(2)._address == "127.0.0.1:2"
    known.image = registered(known.image, 2, "")
    with pytest.raises(CoordinatorNotAvailable, match="has no address for other brokers; retry"):
        peers.transactions(2)


async def test_a_broker_that_does_not_answer_has_written_no_marker(peers: Peers) -> None:
    refused = await peers.write_markers(2, Markers("tx", PRODUCER, True, (T0,), 0), 0)
    assert [(partition, type(error)) for partition, error in refused] == [(T0, CoordinatorNotAvailable)]


async def test_the_other_brokers_coordinators_are_those_that_they_lead(known: Known, peers: Peers) -> None:
    coordinators = GroupCoordinators(known, 1, peers)
    assert (coordinators.numbers(), coordinators.elsewhere()) == (frozenset(), {})
    known.image = known.image.apply_batch(new_topic(CONSUMER_OFFSETS, 7, partitions=3, leader=2))
    known.image = known.image.apply_batch([elected(7, 0, 1), elected(7, 1, -1)])
    assert (coordinators.numbers(), coordinators.elsewhere()) == ({0, 1, 2}, {2: 2})


async def test_a_broker_that_does_not_answer_has_lowered_no_offset(known: Known, peers: Peers) -> None:
    request = LowerOffsets({2}, {T0: LostEnd(7, 1)})
    assert await GroupCoordinators(known, 1, peers).lower(2, request) == ()
    assert await GroupCoordinators(known, 1, peers).lower(9, request) == ()


class Local:
    """This broker's coordinator (`AsksCoordinator`)."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def add_partitions(self, request: AddPartitions, caller: Caller) -> asyncio.Future[PartitionsAdded]:
        self.asked.append(request.transactional_id)
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(PartitionsAdded(None, ()))
        return answer


class Topic:
    """The transactions' topic, with one partition, which broker 2 leads (`CoordinatorTopic`)."""

    def partition_of(self, key: str) -> int | None:
        return 0

    async def coordinator(self, key: str) -> int:
        return 2


async def test_a_coordinator_is_asked_where_it_is(known: Known, peers: Peers) -> None:
    local = Local()
    routed = RoutedCoordinator(local, Topic(), peers)
    request = AddPartitions("tx", PRODUCER, (T0,), verify_only=True, client_version=1)
    known.image = known.image.apply_batch(new_topic("__transaction_state", 2, leader=2))
    with pytest.raises(CoordinatorNotAvailable):
        await routed.add_partitions(request, CALLER)
    assert local.asked == [], "the other broker was asked"
    known.image = known.image.apply(elected(2, 0, 1))
    assert await routed.add_partitions(request, CALLER) == PartitionsAdded(None, ())
    assert local.asked == ["tx"]
