"""Seals a topic at every broker of a cluster. Each broker closes and offloads the active segments of the partitions that it
leads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from service.cli.client import silence
from service.cli.errors import CommandError, Unreachable, report
from service.cli.kafka import unknown_topic

#: Seconds added to the brokers' own timeout.
GRPC_MARGIN_S = 10.0


class Sealing:
    """Seals the topic `name` of the cluster at `bootstrap`. `why` returns the reason why a seal takes long."""

    def __init__(self, bootstrap: str, name: str, why: Callable[[], str]) -> None:
        self._bootstrap = bootstrap
        self._name = name
        self._why = why

    def seal(self, addresses: Sequence[str], *, wait: bool, timeout: float) -> list[dict[str, int]]:
        """The sealed partitions, by number. `addresses` are the brokers' gRPC listeners; `timeout` is in seconds."""
        import grpc
        from google.protobuf.duration_pb2 import Duration

        from grpc_api.proto.topics_pb2 import SealRequest
        from grpc_api.proto.topics_pb2_grpc import TopicsStub

        bound = Duration()
        bound.FromMilliseconds(round(timeout * 1000))
        request = SealRequest(topic=self._name, wait=wait, timeout=bound)
        with ExitStack() as stack:
            answering = []
            for address in addresses:
                channel = stack.enter_context(grpc.insecure_channel(address))
                answering.append(TopicsStub(channel).Seal.future(request, timeout=timeout + GRPC_MARGIN_S))
                stack.callback(answering[-1].cancel)
            if wait:
                self._await(answering)
            answers = [self._answer(each, address) for each, address in zip(answering, addresses, strict=True)]
        sealed = [part for answer in answers for part in answer.partitions]
        return [
            {"partition": part.partition, "end": part.end, "tiered_end": part.tiered_end}
            for part in sorted(sealed, key=lambda part: part.partition)
        ]

    def _await(self, answering: Sequence[Any]) -> None:
        """Returns after all brokers have answered, or after a silence. After a silence, prints the reason for the wait to
        standard error."""
        import grpc

        try:
            for each in answering:
                each.exception(timeout=silence.SILENCE_S)
        except grpc.FutureTimeoutError:
            report(f"{self._name} is not in the bucket after {silence.SILENCE_S:g} s; still waiting: {self._why()}")

    def _answer(self, answering: Any, address: str) -> Any:
        import grpc

        try:
            return answering.result()
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                raise unknown_topic(self._bootstrap, self._name) from None
            unreached = error.code() is grpc.StatusCode.UNAVAILABLE and not error.trailing_metadata()
            kind = Unreachable if unreached else CommandError
            raise kind(f"cannot seal {self._name} through {address}: {error.details()}") from None
