"""Turns the error of a refused write into the error that a coordinator's clients get. Pure."""

from __future__ import annotations

from grpc_api.contract.coordinator_errors import CoordinatorNotAvailable, CoordinatorRecordTooLarge, NotCoordinator
from storage_tiers.errors import (
    LogError,
    NotEnoughReplicas,
    RecordBatchTooLarge,
    RecordTooLarge,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from storage_tiers.types import TopicPartition


def as_coordinator_error(partition: TopicPartition, error: LogError) -> LogError:
    """The error that clients get when a record was not written, as Kafka's CoordinatorOperationExceptionHelper maps it."""
    if isinstance(error, CoordinatorNotAvailable):
        return error
    if isinstance(error, NotEnoughReplicas | RequestTimedOut | UnknownTopicOrPartition):
        return CoordinatorNotAvailable(f"{partition}: {error}; retry")
    if isinstance(error, RecordTooLarge | RecordBatchTooLarge):
        return CoordinatorRecordTooLarge(f"{partition}: {error}")
    return NotCoordinator(f"{partition}: {error}; find the coordinator again")
