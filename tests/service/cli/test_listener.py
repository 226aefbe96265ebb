"""A command tells whether a node's Kafka listener answers at the address it is given, and names any other server."""

from __future__ import annotations

import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import create_server, socket

import pytest

from service.cli.errors import NodeUnreachable
from service.cli.listener import REQUEST, other_protocol, require_reachable
from tests.service.cli.support import tidelog
from tests.support.children import start_child
from tests.support.clients import until
from tests.support.node import Node
from tests.support.ports import free_port

pytestmark = pytest.mark.xdist_group("cli-listener")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("node")) as running:
        yield running


@contextmanager
def answering(answer: bytes | None) -> Iterator[str]:
    """The address of a listener that gives this answer to its first request; with None it stays silent."""
    taken: list[socket] = []

    def serve() -> None:
        connection, _ = listener.accept()
        taken.append(connection)
        connection.recv(1024)
        if answer is not None:
            connection.sendall(answer)
            connection.close()

    with create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join()
        for connection in taken:
            connection.close()


@pytest.mark.parametrize(
    ("first", "protocol"),
    [
        (None, None),
        (b"\0\0\1\x0a\r\n\r\n\0\0\0\0\0\x30", None),
        (b"HTTP/1.0 400 Bad Request", "it speaks HTTP"),
        (b"<!DOCTYPE HTML>", "it speaks HTTP"),
        (b"\0\0\x18\4\0\0\0\0\0\0\4\0", "it speaks gRPC, or another HTTP/2 protocol"),
        (b"\0\0\x08\7\0\0\0\0\0\0\0\0", "it speaks gRPC, or another HTTP/2 protocol"),
        (b"\x15\3\1\0\2\2\x46", "it speaks TLS"),
        (b"", "it closes the connection without an answer, as a TLS listener does"),
        (b"SSH-2.0-OpenSSH", "it speaks another protocol, and answers b'SSH-2.0-OpenSSH'"),
    ],
)
def test_protocols_are_recognised_by_their_first_bytes(first: bytes | None, protocol: str | None) -> None:
    assert other_protocol(first) == protocol


@pytest.mark.parametrize(
    "words",
    [("topic", "list"), ("consume", "t"), ("produce", "t"), ("top", "--once"), ("configs", "describe")],
    ids=str,
)
def test_a_nodes_other_listeners_are_named(node: Node, words: tuple[str, ...]) -> None:
    for address, protocol in ((node.grpc, "gRPC, or another HTTP/2 protocol"), (node.http, "HTTP")):
        ran = tidelog(*words, "-b", address, stdin="")
        assert ran.code == 2
        assert ran.err == (
            f"tidelog: no Kafka listener: {address} (it speaks {protocol}); give a node's Kafka listener with "
            "--bootstrap-server HOST:PORT\n"
        )
        assert tidelog("topic", "list", "-b", node.kafka).code == 0, "as the message advises"


def test_the_first_reachable_of_several_addresses_is_used(node: Node) -> None:
    assert require_reachable(f"127.0.0.1:{free_port()},{node.http},{node.kafka}") == node.kafka
    with pytest.raises(
        NodeUnreachable, match=r"cannot reach a node at .* \(Connection refused\), .* \(it speaks HTTP\)"
    ):
        require_reachable(f"127.0.0.1:{free_port()},{node.http}")


def test_probing_a_listener_leaves_nothing_in_the_nodes_log(node: Node) -> None:
    before = node.output().count("client=")
    for _ in range(20):
        require_reachable(node.kafka)
    assert tidelog("topic", "create", "after", "-b", node.kafka).code == 0
    until(lambda: "topic=after" in node.output(), "earlier events are in the log too")
    assert node.output().count("client=") == before


def test_a_line_based_server_treats_the_request_as_complete() -> None:
    port = free_port()
    words = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    server = start_child(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: "speaks HTTP" in tidelog("topic", "list", "-b", f"127.0.0.1:{port}").err, "it is recognised")
    finally:
        server.kill()
        server.wait()


def test_a_tls_listener_is_recognised(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    subprocess.run([*words, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, pytest.raises(ssl.SSLError):
            context.wrap_socket(connection, server_side=True)

    with create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with pytest.raises(NodeUnreachable, match=r"speaks TLS|as a TLS listener does"):
            require_reachable(f"127.0.0.1:{listener.getsockname()[1]}")
        thread.join()


def test_a_silent_server_is_not_classified(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that hangs may still answer later."""
    monkeypatch.setattr("service.cli.listener.PATIENCE_S", 0.2)
    with answering(None) as address:
        assert require_reachable(address) == address


def test_a_closed_connection_is_logged() -> None:
    with answering(b"") as address, pytest.raises(NodeUnreachable, match="closes the connection without an answer"):
        require_reachable(address)


def test_the_probe_is_a_request_that_kafka_answers() -> None:
    """ApiVersions (18), version 0; its correlation id is two line ends."""
    assert REQUEST == b"\0\0\0\x15\0\x12\0\0\r\n\r\n\0\x0btidelog-cli"
