"""Repairs manifests through the running node, over its gRPC listener."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from service.cli.errors import CommandError, Unreachable
from service.cli.repair_answers import Loss, PartitionRepair

#: Long, because a repair verifies every object of a partition.
REPAIR_TIMEOUT_S = 3600.0


def repairs(
    home: str,
    partitions: Sequence[tuple[str, int, str]],
    *,
    cluster: bool,
    apply: bool,
    losses: Sequence[Loss] = (),
) -> Iterator[PartitionRepair]:
    """Makes the repairs one after another. With `cluster`, cluster.json is first. Each topic's topic.json precedes its
    partitions. Each partition has the address of its leader's gRPC listener, through which it is repaired; the JSON files are
    repaired through the listener at `home`. Raises Unreachable if a listener does not answer, CommandError if a node reports
    another error."""
    import grpc

    from grpc_api.proto import cold_pb2 as pb
    from grpc_api.proto.cold_pb2_grpc import ColdStub

    def answer(address: str, topic: str, number: int, name: str, request: Any) -> PartitionRepair:
        if address not in stubs:
            stubs[address] = ColdStub(channels.enter_context(grpc.insecure_channel(address)))
        try:
            found = getattr(stubs[address], name)(request, timeout=REPAIR_TIMEOUT_S)
        except grpc.RpcError as error:
            unreached = error.code() is grpc.StatusCode.UNAVAILABLE and not error.trailing_metadata()
            kind = Unreachable if unreached else CommandError
            what = f"{topic}-{number}" if number >= 0 else topic or "cluster.json"
            raise kind(f"cannot repair {what} through {address}: {error.details()}") from None
        return PartitionRepair(topic, number, found.summary, found.refused, found.checked, found.commit)

    stubs: dict[str, Any] = {}
    with ExitStack() as channels:
        if cluster:
            yield answer(home, "", -1, "RepairCluster", pb.RepairClusterRequest(apply=apply))
        before = None
        for topic, number, leader in partitions:
            if topic != before:
                yield answer(home, topic, -1, "RepairTopic", pb.RepairTopicRequest(topic=topic, apply=apply))
                before = topic
            accepted = [pb.LostRange(base=each.base, end=each.end) for each in losses if each.partition == number]
            request = pb.RepairRequest(topic=topic, partition=number, apply=apply, accept_loss=accepted)
            yield answer(leader, topic, number, "Repair", request)
