"""From SIGTERM to the exit: the node is unready at once, still sends the answers it owes, and exits with code 0."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import struct
from pathlib import Path

from tests.faults.clients import until
from tests.support.node import Node

#: ApiVersions, version 0, without a client id, preceded by its size.
REQUEST = struct.pack(">ihhih", 10, 18, 0, 7, -1)
#: More requests, and more answers, than the buffers of two sockets hold.
REQUESTS = 1_000_000
#: Failed sends in a row that show that the node reads no more until its answers are read.
IN_A_ROW = 10


def test_a_stopping_node_is_unready_while_it_finishes_answers(tmp_path: Path) -> None:
    with Node(tmp_path) as node, socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = node.kafka.split(":")
        slow.connect((host, int(port)))
        slow.setblocking(False)
        unsent = memoryview(REQUEST * REQUESTS)
        refused = 0

        def owes_more_than_it_can_send() -> bool:
            nonlocal unsent, refused
            try:
                unsent = unsent[slow.send(unsent) :]
                refused = 0
            except BlockingIOError:
                refused += 1
            return refused == IN_A_ROW

        until(owes_more_than_it_can_send, "the node takes no more requests")
        node.signal(signal.SIGTERM)
        until(lambda: node.readyz() == 503, "the node reports that it stops")
        status, body = node.get("/readyz")
        assert (status, json.loads(body)["stopping"]) == (503, True)
        assert node.get("/healthz")[0] == 200
        slow.setblocking(True)
        received = 0
        with contextlib.suppress(ConnectionResetError):  # the node closes once all is sent, with requests still unread
            while data := slow.recv(1 << 20):
                received += len(data)
        assert received > 0
        assert node.wait() == 0
