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
#: Number of requests: they and their answers exceed the buffers of two sockets.
REQUESTS = 1_000_000
#: After this number of failed sends in a row, the node reads no request until the client reads its answers.
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
        with contextlib.suppress(ConnectionResetError):  # the node closes after its last answer, with requests unread
            while data := slow.recv(1 << 20):
                received += len(data)
        assert received > 0
        assert node.wait() == 0
