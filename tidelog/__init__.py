"""The packages that programs embed: clients of a node, and readers of the bucket without one.

    from tidelog import BlockingClient, Client, ColdBucket, tables

This package only re-exports names, and imports each at its first use. So a program that only sends records does not load the
readers of buckets, and a program that only reads the bucket does not load gRPC.

`Client`, `BlockingClient` and a `ColdBucket` in a directory need only `tidelog`. A `ColdBucket` on S3 and `tables` need
`tidelog[arrow]`; their error says so if that extra is missing. The errors are in `tidelog.errors`.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grpc_api.sdk.blocking import BlockingClient as BlockingClient
    from grpc_api.sdk.client import Client as Client
    from grpc_api.sdk.cold import AsyncColdBucket as AsyncColdBucket
    from grpc_api.sdk.cold import ColdBucket as ColdBucket
    from grpc_api.sdk.values import Acks as Acks
    from grpc_api.sdk.values import ConsumerOptions as ConsumerOptions
    from grpc_api.sdk.values import Message as Message
    from grpc_api.sdk.values import ProducerOptions as ProducerOptions
    from grpc_api.sdk.values import ReaderOptions as ReaderOptions
    from grpc_api.sdk.values import Sent as Sent
    from grpc_api.sdk.values import Start as Start
    from pyspark_tidelog.arrow_tables import Tables as Tables
    from pyspark_tidelog.arrow_tables import describe as describe
    from pyspark_tidelog.arrow_tables import tables as tables
    from storage_tiers.errors import Advice as Advice
    from storage_tiers.errors import LogError as LogError
    from storage_tiers.types import TopicPartition as TopicPartition

#: Each name and the module that defines it.
HOMES = {
    "Acks": "grpc_api.sdk.values",
    "Advice": "storage_tiers.errors",
    "AsyncColdBucket": "grpc_api.sdk.cold",
    "BlockingClient": "grpc_api.sdk.blocking",
    "Client": "grpc_api.sdk.client",
    "ColdBucket": "grpc_api.sdk.cold",
    "ConsumerOptions": "grpc_api.sdk.values",
    "LogError": "storage_tiers.errors",
    "Message": "grpc_api.sdk.values",
    "ProducerOptions": "grpc_api.sdk.values",
    "ReaderOptions": "grpc_api.sdk.values",
    "Sent": "grpc_api.sdk.values",
    "Start": "grpc_api.sdk.values",
    "Tables": "pyspark_tidelog",
    "TopicPartition": "storage_tiers.types",
    "describe": "pyspark_tidelog",
    "tables": "pyspark_tidelog",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        return version("tidelog")
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(HOMES)
