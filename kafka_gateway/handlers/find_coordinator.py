"""FindCoordinator, key 10, versions 0 to 6: there is no coordinator, since neither groups nor transactions are served.

Advertised to librdkafka only (`api_versions.py`). For a group the answer is a retriable error, because a client may set a group
name and only use assign(); the node logs it, since librdkafka does not. A transactional id is refused as unauthorized: after
any other answer that was tried, librdkafka retries until its timeout.
"""

from __future__ import annotations

import logging
from typing import Any

from kafka_gateway.errors import ErrorCode
from kafka_gateway.message_handler import Call, Fields
from storage_tiers import events

log = logging.getLogger(__name__)

_GROUP, _TRANSACTION = 0, 1
_NOWHERE: Fields = {"node_id": -1, "host": "", "port": -1}
#: The group name of tidelog's command line, which never joins it: librdkafka requires a name.
_ASSIGNS_ONLY = "tidelog-cli"
NO_GROUPS = "consumer groups are not served; name partitions with assign()"
NO_TRANSACTIONS = "transactions are not served; use an idempotent producer without a transactional id"


def serve(request: Any, call: Call) -> Fields:
    kind = getattr(request, "key_type", _GROUP)
    if kind == _TRANSACTION:
        return refuse(request, call, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NO_TRANSACTIONS)
    if call.client_id != _ASSIGNS_ONLY:
        _say_asked(request, call)
    return refuse(request, call, ErrorCode.COORDINATOR_NOT_AVAILABLE, NO_GROUPS)


def _say_asked(request: Any, call: Call) -> None:
    """Logs at a bounded rate per client and group: the client retries silently."""
    group = request.key if call.messages.version < 4 else next(iter(request.coordinator_keys), "")
    host = call.client.host
    if call.options.group_lines.allows((host, group), call.options.clock.monotonic()) is not None:
        client = f"{host}:{call.client.port}"
        events.provoked(
            log, "group.refused", by=host, client=client, client_id=call.client_id, group=group, error=NO_GROUPS
        )


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    error = {"error_code": code, "error_message": message, **_NOWHERE}
    if call.messages.version < 4:
        return error
    return {"coordinators": (call.make("Coordinator", key=key, **error) for key in request.coordinator_keys)}
