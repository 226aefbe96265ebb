"""Error codes of a transaction coordinator for clients that do not know PRODUCER_FENCED."""

from __future__ import annotations

from grpc_api.contract.coordinator_errors import ProducerFenced
from kafka_gateway.errors import ErrorCode, code_of
from storage_tiers.errors import LogError


def fenced_code(error: LogError | None, version: int, knows_fenced: int) -> int:
    """Returns the error's code. Below version `knows_fenced`, PRODUCER_FENCED becomes INVALID_PRODUCER_EPOCH, as in Kafka."""
    if version < knows_fenced and isinstance(error, ProducerFenced):
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code_of(error)
