"""The whole core, as the Kafka gateway and the gRPC server use it."""

from __future__ import annotations

from typing import Protocol

from grpc_api.contract.cold import Cold
from grpc_api.contract.groups import Groups
from grpc_api.contract.log import Log
from grpc_api.contract.topics import Configs, Topics
from grpc_api.contract.transactions import Transactions


class Core(Protocol):
    """The services of a broker. Gateways call it in their process, or through `grpc_api.remote`."""

    @property
    def log(self) -> Log: ...

    @property
    def topics(self) -> Topics: ...

    @property
    def configs(self) -> Configs: ...

    @property
    def cold(self) -> Cold: ...

    @property
    def groups(self) -> Groups: ...

    @property
    def transactions(self) -> Transactions: ...
