"""ListTransactions, key 66, versions 0 to 2: the transactional ids that this broker coordinates (KIP-664). v1 selects by the
age of open transactions (KIP-994), v2 by a regular expression (KIP-1152).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from grpc_api.contract.transactions import STATES, ListTransactions, TransactionsListed
from kafka_gateway.errors import code_of
from kafka_gateway.message_handler import Call, Fields


async def serve(request: Any, call: Call) -> Fields:
    known: set[str] = set()
    unknown: dict[str, None] = {}  # without duplicates, in order
    async for each in call.each(request.state_filters):
        if each in STATES:
            known.add(each)
        else:
            unknown[each] = None
    wanted = ListTransactions(
        frozenset(known or islice(unknown, 1)),  # an unknown state matches no transaction
        frozenset(request.producer_id_filters),
        getattr(request, "duration_filter", -1),
        getattr(request, "transactional_id_pattern", None) or None,
    )
    return _fields(await call.core.transactions.list(wanted, call.caller), unknown, call)


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"error_code": code, "unknown_state_filters": (), "transaction_states": ()}


def _fields(listed: TransactionsListed, unknown: Iterable[str], call: Call) -> Fields:
    return {
        "error_code": code_of(listed.error),
        "unknown_state_filters": tuple(unknown),
        "transaction_states": (
            call.make(
                "TransactionState",
                transactional_id=each.transactional_id,
                producer_id=each.producer_id,
                transaction_state=each.state,
            )
            for each in listed.transactions
        ),
    }
