"""A TCP proxy in front of a node that records the bytes of clients, connection by connection.

    with RecordingProxy() as proxy:
        with Node(tmp_path, flags=["--advertised-listeners", f"PLAINTEXT://{proxy.address}"]) as node:
            proxy.forward_to(node.kafka)
            ...                                       # clients bootstrap from proxy.address
        proxy.sent                                    # bytes of each connection, in order of connecting

The node must advertise the proxy, or clients bypass it. Each connection takes two threads.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType

RECEIVE_BYTES = 1 << 16


class RecordingProxy:
    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._target: tuple[str, int] | None = None
        self.sent: list[bytearray] = []

    def __enter__(self) -> RecordingProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.close()

    def forward_to(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._target is None:
                    client.close()
                    continue
                node = socket.create_connection(self._target)
                kept = bytearray()
                self.sent.append(kept)
                threading.Thread(target=_pump, args=(client, node, kept), daemon=True).start()
                threading.Thread(target=_pump, args=(node, client, None), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket, kept: bytearray | None) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(RECEIVE_BYTES):
            if kept is not None:
                kept += data
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
