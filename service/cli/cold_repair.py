"""What `tidelog cold repair` asks of a node, and how it says the answers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from service.cli.errors import CommandError, Unreachable

if TYPE_CHECKING:
    from service.settings import NodeSettings

#: A repair looks at every object of a partition.
REPAIR_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Loss:
    """Offsets [base, end) of a partition, to be given up."""

    partition: int
    base: int
    end: int

    @classmethod
    def parse(cls, text: str) -> Loss:
        """ValueError unless it is PARTITION:START-END."""
        found = re.fullmatch(r"(\d+):(\d+)-(\d+)", text)
        if found is None or int(found[2]) >= int(found[3]):
            raise ValueError(
                f"{text!r} names no offsets: write PARTITION:START-END, END being the first offset that is kept"
            )
        return cls(*map(int, found.groups()))


@dataclass(frozen=True, slots=True)
class PartitionRepair:
    """One answer. `commit` is the one that was made, 0 if none. Of `topic.json` the partition is -1, of `cluster.json` the
    topic is empty as well."""

    topic: str
    partition: int
    summary: str
    refused: str
    checked: int
    commit: int

    @property
    def line(self) -> str:
        name = f"{self.topic}-{self.partition}"
        if self.partition < 0:
            name = f"topic.json of {self.topic}" if self.topic else "cluster.json"
        if self.refused:
            return f"{name}: cannot be repaired: {self.refused}"
        if not self.summary:
            return f"{name}: nothing to repair"
        done = f" (done: {self._numbered} {self.commit})" if self.commit else ""
        checked = f"; {self.checked} objects were checked" if self.partition >= 0 else ""
        return f"{name}: {self.summary}{checked}{done}"

    @property
    def _numbered(self) -> str:
        if self.partition >= 0:
            return "commit"
        return "revision" if self.topic else "incarnation"

    def as_json(self) -> Mapping[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def repairs(
    address: str,
    partitions: Sequence[tuple[str, int]],
    *,
    cluster: bool,
    apply: bool,
    losses: Sequence[Loss] = (),
) -> Iterator[PartitionRepair]:
    """One after another, through the node whose gRPC face is at `address`: with `cluster` first the cluster's file, then of
    each topic its file and its partitions. CommandError, Unreachable."""
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


def repairs_offline(
    settings: NodeSettings, topic: str | None, *, apply: bool, losses: Sequence[Loss]
) -> Iterator[PartitionRepair]:
    """As `repairs`, by the data directory of a node that is stopped. LogError."""
    from service.repair_offline import repaired
    from storage_tiers.types import OffsetRange

    accepted: dict[int, list[OffsetRange]] = {}
    for loss in losses:
        accepted.setdefault(loss.partition, []).append(OffsetRange(loss.base, loss.end))

    answers = repaired(settings, topic, apply=apply, accept_loss=accepted)

    async def following() -> PartitionRepair | None:
        async for name, number, found in answers:
            return PartitionRepair(name, number, found.summary, found.refused, found.checked, found.commit)
        return None

    with asyncio.Runner() as runner:
        try:
            while (answer := runner.run(following())) is not None:
                yield answer
        finally:
            runner.run(answers.aclose())
