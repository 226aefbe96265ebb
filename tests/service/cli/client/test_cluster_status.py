"""The state of brokers from the metadata of one of them."""

from __future__ import annotations

from service.cli.client.cluster_status import BrokerRow, PlacedPartition, status_of

PARTITIONS = (
    PlacedPartition("b", 10, -1, [2]),
    PlacedPartition("b", 9, -1, [2]),
    PlacedPartition("a", 0, 1, [1]),
    PlacedPartition("a", 1, 1, [1, 3]),
)


def test_a_broker_that_is_not_listed_and_holds_partitions_is_away() -> None:
    brokers, leaderless, without_disk = status_of({1: "h:1", 3: "h:3"}, 3, PARTITIONS)
    assert brokers == [
        BrokerRow(1, "h:1", "ready", False, 2, 2),
        BrokerRow(2, None, "away", False, 0, 2),
        BrokerRow(3, "h:3", "ready", True, 0, 1),
    ]
    assert leaderless == ["b-9", "b-10"]
    assert without_disk == []


def test_a_ready_broker_whose_partitions_have_no_leader_runs_without_their_disk() -> None:
    assert status_of({1: "h:1", 2: "h:2"}, 1, PARTITIONS).without_disk == [2]


def test_a_new_cluster_has_brokers_without_partitions() -> None:
    assert status_of({1: "h:1"}, 1, ()) == ([BrokerRow(1, "h:1", "ready", True, 0, 0)], [], [])
