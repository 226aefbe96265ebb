"""What `tidelog cold repair` asks of a node, and how it says the answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from service.cli.errors import CommandError, Unreachable

#: A repair looks at every object of a partition.
REPAIR_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True)
class PartitionRepair:
    """One partition's answer. `commit` is the one that was made, 0 if none."""

    topic: str
    partition: int
    summary: str
    refused: str
    checked: int
    commit: int

    @property
    def line(self) -> str:
        name = f"{self.topic}-{self.partition}"
        if self.refused:
            return f"{name}: cannot be repaired: {self.refused}"
        if not self.summary:
            return f"{name}: nothing to repair"
        done = f" (done: commit {self.commit})" if self.commit else ""
        return f"{name}: {self.summary}; {self.checked} objects are what was uploaded{done}"

    def as_json(self) -> Mapping[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def repairs(address: str, partitions: list[tuple[str, int]], *, apply: bool) -> Iterator[PartitionRepair]:
    """One after another, through the node whose gRPC face is at `address`. CommandError, Unreachable."""
    import grpc

    from grpc_api.proto.cold_pb2 import RepairRequest
    from grpc_api.proto.cold_pb2_grpc import ColdStub

    with grpc.insecure_channel(address) as channel:
        for topic, number in partitions:
            request = RepairRequest(topic=topic, partition=number, apply=apply)
            try:
                answer = ColdStub(channel).Repair(request, timeout=REPAIR_TIMEOUT_S)
            except grpc.RpcError as error:
                unreached = error.code() is grpc.StatusCode.UNAVAILABLE and not error.trailing_metadata()
                kind = Unreachable if unreached else CommandError
                raise kind(f"cannot repair {topic}-{number} through {address}: {error.details()}") from None
            yield PartitionRepair(topic, number, answer.summary, answer.refused, answer.checked, answer.commit)
