"""RemoveRaftVoter, key 81, version 0 (KIP-853): every request is refused, because the voters are fixed, as at kraft.version
0."""

from __future__ import annotations

from typing import Any

from kafka_gateway.handlers import add_raft_voter
from kafka_gateway.handlers.add_raft_voter import unsupported, wrong_voter
from kafka_gateway.message_handler import Call, Fields

refuse = add_raft_voter.refuse


def serve(request: Any, call: Call) -> Fields:
    return wrong_voter(request, call) or unsupported(request, call, "removing")
