"""A node that does not run for 20 seconds, as on a suspended machine, keeps the members whose heartbeats lie in its sockets."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.differential.peer import Peer
from tests.differential.sessions.groups import stable
from tests.faults.clients import until
from tests.support.node import Node

pytestmark = pytest.mark.faults

PAUSE_S, SESSION_MS, GROUPS = 20.0, 6_000, 10


def test_no_member_with_a_heartbeat_in_the_socket_expires(tmp_path: Path) -> None:
    with Node(tmp_path, settings={"group.initial.rebalance.delay.ms": 0}) as node:
        members = []
        for number in range(GROUPS):
            peer = Peer("node", node.kafka, f"paused-{number}")
            group, member, generation = stable(peer, session_timeout=SESSION_MS)
            members.append((peer, {"group_id": group, "member_id": member, "generation_id": generation}))
        assert node.process is not None
        node.process.send_signal(signal.SIGSTOP)
        try:
            sent = [peer.begin("heartbeat", 0, **beat) for peer, beat in members]
            end = time.monotonic() + PAUSE_S
            until(lambda: time.monotonic() > end, "the pause is over")
        finally:
            node.process.send_signal(signal.SIGCONT)
        for (peer, beat), waiting in zip(members, sent, strict=True):
            assert waiting.end("after the pause")["error_code"] == "NONE"
            assert peer.quietly("heartbeat", 0, **beat)["error_code"] == "NONE"
            peer.close_connection()
