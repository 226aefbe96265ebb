"""Repairs manifests through the running node, over its gRPC listener."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from service.cli.errors import CommandError, Unreachable
from service.cli.repair_answers import Loss, PartitionRepair

#: Long, because a repair verifies every object of a partition.
REPAIR_TIMEOUT_S = 3600.0


def repairs(
    address: str,
    partitions: Sequence[tuple[str, int]],
    *,
    cluster: bool,
    apply: bool,
    losses: Sequence[Loss] = (),
) -> Iterator[PartitionRepair]:
    """Makes the repairs one after another, through the gRPC listener at `address`. With `cluster`, cluster.json is first. Then
    come each topic's topic.json and its partitions. Raises CommandError, Unreachable."""
    import grpc

    from grpc_api.proto import cold_pb2 as pb
    from grpc_api.proto.cold_pb2_grpc import ColdStub

    def answer(topic: str, number: int, call: Any, request: Any) -> PartitionRepair:
        try:
            found = call(request, timeout=REPAIR_TIMEOUT_S)
        except grpc.RpcError as error:
            unreached = error.code() is grpc.StatusCode.UNAVAILABLE and not error.trailing_metadata()
            kind = Unreachable if unreached else CommandError
            name = f"{topic}-{number}" if number >= 0 else topic or "cluster.json"
            raise kind(f"cannot repair {name} through {address}: {error.details()}") from None
        return PartitionRepair(topic, number, found.summary, found.refused, found.checked, found.commit)

    with grpc.insecure_channel(address) as channel:
        stub = ColdStub(channel)
        if cluster:
            yield answer("", -1, stub.RepairCluster, pb.RepairClusterRequest(apply=apply))
        before = None
        for topic, number in partitions:
            if topic != before:
                yield answer(topic, -1, stub.RepairTopic, pb.RepairTopicRequest(topic=topic, apply=apply))
                before = topic
            accepted = [pb.LostRange(base=each.base, end=each.end) for each in losses if each.partition == number]
            request = pb.RepairRequest(topic=topic, partition=number, apply=apply, accept_loss=accepted)
            yield answer(topic, number, stub.Repair, request)
