"""AddRaftVoter, key 80, versions 0 to 1 (KIP-853): every request is refused, because the voters are fixed, as at kraft.version
0.

The checks and their order are Kafka's: cluster id, then the voter's ids, then its controller endpoint.
"""

from __future__ import annotations

from typing import Any

from kafka_gateway.errors import ErrorCode
from kafka_gateway.message_handler import Call, Fields

#: The listener for which the voter's endpoint is required.
CONTROLLER = "CONTROLLER"


def serve(request: Any, call: Call) -> Fields:
    wrong = wrong_voter(request, call)
    if wrong is not None:
        return wrong
    if CONTROLLER not in {listener.name for listener in request.listeners}:
        message = f"Add voter request didn't include the endpoint for the default listener {CONTROLLER}"
        return refuse(request, call, ErrorCode.INVALID_REQUEST, message)
    return unsupported(request, call, "adding")


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"error_code": code, "error_message": message}


def wrong_voter(request: Any, call: Call) -> Fields | None:
    """The answer to a request that names another cluster (a null id is accepted) or no voter; None for other requests."""
    ours = call.core.topics.cluster().cluster_id
    if request.cluster_id not in (None, ours):
        message = f'The given id "{request.cluster_id}" doesn\'t match the cluster id "{ours}"'
        return refuse(request, call, ErrorCode.INCONSISTENT_CLUSTER_ID, message)
    if request.voter_id < 0 or request.voter_directory_id is None:
        message = "A voter needs an id of 0 or above and a directory id"
        return refuse(request, call, ErrorCode.INVALID_REQUEST, message)
    return None


def unsupported(request: Any, call: Call, what: str) -> Fields:
    message = f"Cluster doesn't support {what} voter because the kraft.version feature is 0"
    return refuse(request, call, ErrorCode.UNSUPPORTED_VERSION, message)
