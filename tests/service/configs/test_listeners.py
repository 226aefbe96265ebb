"""`listeners` and related configs are parsed and refused as by Kafka 4.2.1, with its recorded error texts; and a node
listens accordingly."""

from __future__ import annotations

import contextlib
import json
import socket
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from hypothesis import given
from hypothesis import strategies as st

from grpc_api.contract.topics import Endpoint, text_of
from service.configs.listeners import MAX_PORT, Listeners, host_and_port, parse_listeners, url_of
from service.serve.app import run
from service.settings.node_settings import load_settings
from storage_tiers.errors import InvalidConfig
from tests.support.node import Node
from tests.support.ports import free_port

TWO = "INSIDE://:9092,OUTSIDE://0.0.0.0:9192"
TOLD = "INSIDE://tidelog.pods:9092,OUTSIDE://logs.example.com:443"
MAP = "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT"


def test_two_listeners_are_parsed_with_their_advertised_addresses() -> None:
    assert parse_listeners(TWO, TOLD, MAP) == Listeners(
        (Endpoint("INSIDE", "", 9092), Endpoint("OUTSIDE", "0.0.0.0", 9192)),
        (Endpoint("INSIDE", "tidelog.pods", 9092), Endpoint("OUTSIDE", "logs.example.com", 443)),
    )


def test_names_have_no_case_and_spaces_do_not_count() -> None:
    found = parse_listeners(" inside://[::1]:9092 , Plaintext://h:1,", None, " inside:plaintext,PLAINTEXT:PLAINTEXT")
    assert found.bound == (Endpoint("INSIDE", "::1", 9092), Endpoint("PLAINTEXT", "h", 1))
    assert found.advertised == found.bound


def test_missing_hosts_and_ports_come_from_the_socket_and_the_machine() -> None:
    found = parse_listeners(
        "PLAINTEXT://:0,SSL://127.0.0.1:0", "SSL://:0,PLAINTEXT://h:0", "SSL:PLAINTEXT,PLAINTEXT:PLAINTEXT"
    )
    assert found.needs_machine
    resolved = found.resolved({"PLAINTEXT": 1001, "SSL": 1002}, "machine")
    assert resolved.bound == (Endpoint("PLAINTEXT", "", 1001), Endpoint("SSL", "127.0.0.1", 1002))
    assert resolved.advertised == (Endpoint("SSL", "machine", 1002), Endpoint("PLAINTEXT", "h", 1001))
    assert not parse_listeners("PLAINTEXT://h:0").needs_machine


@pytest.mark.parametrize(
    "listeners",
    ["PLAINTEXT://127.0.0.1:1,SSL://[::1]:1", "PLAINTEXT://[::1]:1,SSL://10.0.0.1:1", "PLAINTEXT://a:0,SSL://a:0"],
)
def test_two_address_families_may_share_a_port(listeners: str) -> None:
    assert len(parse_listeners(listeners, None, "SSL:PLAINTEXT,PLAINTEXT:PLAINTEXT").bound) == 2


@pytest.mark.parametrize(
    ("listeners", "advertised", "protocols", "complaint"),
    [
        ("", None, None, "listeners names no listener"),
        ("9092", None, None, "listeners: '9092' is not a listener; write NAME://HOST:PORT"),
        ("PLAINTEXT://h:65536", None, None, "listeners: 'PLAINTEXT://h:65536' is not a listener"),
        ("PLAINTEXT://h:-1", None, None, "is not a listener"),
        ("://h:1", None, None, "is not a listener"),
        ("INSIDE://h:1", None, None, "No security protocol defined for listener INSIDE; add INSIDE:PLAINTEXT to"),
        ("PLAINTEXT://h:1", None, "INSIDE:PLAINTEXT", "No security protocol defined for listener PLAINTEXT"),
        ("SSL://h:1", None, None, "protocol of listener SSL is SSL, and this version supports only PLAINTEXT"),
        ("A://h:1", None, "A:SASL_SSL", "protocol of listener A is SASL_SSL"),
        ("A://h:1", None, "A:TLS", "'A:TLS' is not NAME:PROTOCOL; write A:PLAINTEXT"),
        ("A://h:1", None, "A", "'A' is not NAME:PROTOCOL"),
        ("A://h:1,a://h:2", None, "A:PLAINTEXT", "Each listener must have a different name, and A appears twice"),
        (TWO, TOLD.replace("OUTSIDE", "INSIDE"), MAP, "advertised.listeners: Each listener must have a different name"),
        ("INSIDE://a:1,OUTSIDE://b:1", None, MAP, "Each listener must have a different port, .* 1 appears twice"),
        ("INSIDE://1.1.1.1:1,OUTSIDE://1.1.1.2:1", None, MAP, "Each listener must have a different port"),
        ("INSIDE://:1,OUTSIDE://[::1]:1", None, MAP, "Each listener must have a different port"),
        (
            "PLAINTEXT://0.0.0.0:1",
            None,
            None,
            "clients cannot connect to 0.0.0.0; write PLAINTEXT://HOST:1 in adv",
        ),
        ("PLAINTEXT://[::]:1", None, None, "clients cannot connect to ::; write PLAINTEXT://HOST:1"),
        (
            TWO,
            "INSIDE://h:1,OUTSIDE://0.0.0.0:1",
            MAP,
            "advertised.listeners OUTSIDE://0.0.0.0:1: clients cannot connect",
        ),
        (TWO, f"{TOLD},THIRD://h:1", MAP, "names THIRD, which listeners does not: it has INSIDE, OUTSIDE"),
        (TWO, "INSIDE://h:1", MAP, "does not name OUTSIDE: clients that connect there would get no broker's address"),
    ],
    ids=str,
)
def test_wrong_listeners_are_named(
    listeners: str, advertised: str | None, protocols: str | None, complaint: str
) -> None:
    with pytest.raises(InvalidConfig, match=complaint):
        parse_listeners(listeners, advertised, protocols)


@given(
    st.sampled_from(["", "h", "logs.example.com", "10.0.0.1", "::1", "fe80::1%eth0"]),
    st.integers(0, MAX_PORT),
)
def test_addresses_are_parsed(host: str, port: int) -> None:
    assert host_and_port(text_of(host, port)) == (host, port)
    at = Endpoint("PLAINTEXT", host, port)
    assert parse_listeners(url_of(at)).bound == (at,)


@pytest.mark.parametrize("text", ["", "h", "h:", "h:x", "h:65536", "h h:1", "http://h:1"])
def test_text_that_is_not_an_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write HOST:PORT"):
        host_and_port(text)


# --- a node -----------------------------------------------------------------------------------------------------------
def test_a_node_is_reached_from_both_sides(tmp_path: Path) -> None:
    inside, outside = free_port(), free_port()
    listeners = f"INSIDE://:{inside},OUTSIDE://127.0.0.1:{outside}"
    advertised = f"INSIDE://localhost:{inside},OUTSIDE://127.0.0.1:{outside}"
    environment = {"TIDELOG_ADVERTISED_LISTENERS": advertised, "TIDELOG_LISTENER_SECURITY_PROTOCOL_MAP": MAP}
    with Node(tmp_path, flags=["--listeners", listeners], environment=environment) as node:
        for host, port in (("localhost", inside), ("127.0.0.1", outside)):
            admin = AdminClient({"bootstrap.servers": f"{host}:{port}"})
            known = admin.list_topics(timeout=60).brokers.values()
            assert [f"{each.host}:{each.port}" for each in known] == [f"{host}:{port}"]
            described = admin.describe_cluster().result(60).nodes
            assert [f"{each.host}:{each.port}" for each in described] == [f"{host}:{port}"]
            producer = Producer({"bootstrap.servers": f"{host}:{port}"})
            producer.produce("t", b"x")
            assert producer.flush(20) == 0
        resource = ConfigResource(ResourceType.BROKER, "1")
        configs = admin.describe_configs([resource])[resource].result(60)
        names = ("listeners", "advertised.listeners", "listener.security.protocol.map")
        assert [configs[name].value for name in names] == [listeners, advertised, MAP]
        endpoints = json.loads((node.data_dir / "endpoints.json").read_text())
        assert endpoints["kafka"] == {"INSIDE": f"0.0.0.0:{inside}", "OUTSIDE": f"127.0.0.1:{outside}"}
        assert endpoints["advertised"] == {"INSIDE": f"localhost:{inside}", "OUTSIDE": f"127.0.0.1:{outside}"}
        assert f"Kafka   INSIDE  0.0.0.0:{inside}, advertised as localhost:{inside}\n" in node.output()
        assert f"          OUTSIDE 127.0.0.1:{outside}\n" in node.output()
        assert node.stop() == 0


@pytest.mark.parametrize(
    ("port", "what", "flag"),
    [
        (9092, "Kafka's clients", "address in --listeners"),
        (9093, "gRPC", "--grpc-listener"),
        (9094, "HTTP", "--http-listener"),
    ],
)
def test_the_default_ports_are_9092_to_9094(tmp_path: Path, port: int, what: str, flag: str) -> None:
    free = {"listeners": "PLAINTEXT://127.0.0.1:0", "grpc_listener": "127.0.0.1:0", "http_listener": "127.0.0.1:0"}
    del free[{9092: "listeners", 9093: "grpc_listener", 9094: "http_listener"}[port]]
    settings = load_settings({**free, "data_dir": tmp_path / "data", "store": "none"}, environ={})
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # a port that is already in use serves as well
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
        said = (
            f"127.0.0.1:{port} for {what}: Address already in use; stop the process using it, or choose another {flag}"
        )
        with pytest.raises(InvalidConfig, match=said):
            run(settings)
    assert not (tmp_path / "data").exists()
