"""EndTxn, key 26, versions 0 to 5: commits or aborts a transaction. From v5 on every transaction has an epoch of its own
(KIP-890), and the answer contains the producer id and epoch of the next transaction.
"""

from __future__ import annotations

from typing import Any

from grpc_api.contract.transactions import (
    EPOCH_PER_TRANSACTION,
    NO_PRODUCER,
    EndTransaction,
    ProducerIdAndEpoch,
    TransactionEnded,
)
from kafka_gateway.message_handler import Call, Delayed, Fields
from kafka_gateway.transaction_errors import fenced_code

#: The first version whose clients know PRODUCER_FENCED.
KNOWS_FENCED = 2
#: The first version whose transactions have epochs of their own (EPOCH_PER_TRANSACTION).
BUMPS_EPOCH = 5


def serve(request: Any, call: Call) -> Delayed:
    asked = EndTransaction(
        request.transactional_id,
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        request.committed,
        EPOCH_PER_TRANSACTION if call.messages.version >= BUMPS_EPOCH else 0,
    )
    return Delayed(call.core.transactions.end(asked, call.caller), lambda ended: _ended(ended, call))


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"error_code": code, "producer_id": NO_PRODUCER.id, "producer_epoch": NO_PRODUCER.epoch}


def _ended(done: TransactionEnded, call: Call) -> Fields:
    return {
        "error_code": fenced_code(done.error, call.messages.version, KNOWS_FENCED),
        "producer_id": done.producer.id,
        "producer_epoch": done.producer.epoch,
    }
