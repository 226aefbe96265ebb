"""Measures the machine's limits without any broker, in the same run as the brokers: a loopback socket, and one file."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time

CHUNK = 1 << 20


def loopback_megabytes_per_second(seconds: float = 1.0) -> float:
    """The rate of one TCP connection on loopback with writes of 1 MiB."""
    listener = socket.create_server(("127.0.0.1", 0))
    payload = bytes(CHUNK)

    def drain() -> None:
        peer, _ = listener.accept()
        buffer = bytearray(CHUNK)
        while peer.recv_into(buffer):
            pass
        peer.close()

    reader = threading.Thread(target=drain)
    reader.start()
    sender = socket.create_connection(listener.getsockname())
    start, sent = time.perf_counter(), 0
    while time.perf_counter() < start + seconds:
        sender.sendall(payload)
        sent += CHUNK
    sender.close()
    reader.join()
    listener.close()
    return sent / (time.perf_counter() - start) / 1e6


def loopback_round_trips_per_second(seconds: float = 1.0) -> float:
    """The rate of 200-byte messages, one at a time, to an echo server on loopback."""
    listener = socket.create_server(("127.0.0.1", 0))

    def echo() -> None:
        peer, _ = listener.accept()
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := peer.recv(4096):
            peer.sendall(data)
        peer.close()

    reader = threading.Thread(target=echo)
    reader.start()
    sender = socket.create_connection(listener.getsockname())
    sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    message, start, count = bytes(200), time.perf_counter(), 0
    while time.perf_counter() < start + seconds:
        sender.sendall(message)
        sender.recv(4096)
        count += 1
    sender.close()
    reader.join()
    listener.close()
    return count / (time.perf_counter() - start)


def file_write_megabytes_per_second(directory: str, megabytes: int = 256) -> float:
    """The rate of 1 MiB appends to one new file, into the page cache (by default a broker does not sync appends either)."""
    payload = os.urandom(CHUNK)
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        start = time.perf_counter()
        for _ in range(megabytes):
            file.write(payload)
        return megabytes * CHUNK / (time.perf_counter() - start) / 1e6
