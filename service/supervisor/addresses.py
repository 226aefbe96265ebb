"""The sockets that a supervisor holds, and a check that the ports of its brokers are free."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from grpc_api.contract.topics import text_of
from grpc_api.listening import every_address, listen
from service.configs.listeners import host_and_port, parse_listeners, url_of
from service.settings.node_settings import NodeSettings
from service.supervisor.plan import BrokerPlan
from storage_tiers.errors import InvalidConfig

LOOPBACK = "127.0.0.1"


@contextlib.contextmanager
def bootstrap_sockets(settings: NodeSettings) -> Iterator[dict[str, socket.socket]]:
    """Yields listening sockets for the node's listeners, by name. Started processes inherit the sockets. Connections that wait
    in a socket's backlog survive the end of a broker. Raises InvalidConfig if an address cannot be bound."""
    asked = parse_listeners(settings.listeners, settings.advertised_listeners, settings.listener_security_protocol_map)
    with contextlib.ExitStack() as stack:
        found = {}
        for each in asked.bound:
            try:
                found[each.listener] = stack.enter_context(listen(each.host, each.port))
            except OSError as error:
                raise InvalidConfig(
                    f"cannot listen on {url_of(each)} for Kafka's clients: {error.strerror}; stop the process using it, or "
                    "choose another address in --listeners"
                ) from None
            found[each.listener].set_inheritable(True)
        yield found


@contextlib.contextmanager
def held_address(settings: NodeSettings) -> Iterator[str]:
    """Yields the address of the first broker's controller. A port that the kernel chose stays reserved while that broker is
    down, because this process binds the port without listening."""
    host, port = (LOOPBACK, 0) if settings.controller_listener is None else host_and_port(settings.controller_listener)
    if port:
        yield text_of(host, port)
        return
    address = host or every_address()
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((address, 0))
        yield text_of(host, held.getsockname()[1])


def check_free(brokers: list[BrokerPlan]) -> None:
    """Raises InvalidConfig with the first taken port of a broker, or with an address that is not this machine's."""
    for broker in brokers:
        settings = broker.settings
        kafka = [
            (each.host, each.port)
            for each in parse_listeners(
                settings.listeners, settings.advertised_listeners, settings.listener_security_protocol_map
            ).bound
        ]
        others = [host_and_port(each) for each in (settings.grpc_listener, settings.http_listener)]
        for host, port in (*kafka, *others):
            try:
                listen(host, port).close()
            except OSError as error:
                raise InvalidConfig(
                    f"broker {broker.broker_id} cannot listen on {text_of(host, port)}: {error.strerror}; stop the process "
                    "using it, or choose other ports: every broker has its own ports, the next free numbers after those of "
                    "--listeners, --grpc-listener and --http-listener"
                ) from None
