"""Derives the settings of each broker of a machine from the settings of the whole node.

The configured listeners belong to the node: clients connect there first, and any broker may answer. Every broker also has its
own ports. They are the next numbers after the configured ports, broker by broker, so an additional broker does not change the
ports of the others. The first broker has the node's own data directory, so the directory of a single broker can continue with
several brokers without a copy. It also has the controller, unless another node has it.

Invariant: no two brokers share a port, an id or a directory. Not promised: that no other process has those ports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from grpc_api.contract.topics import Endpoint, text_of
from service.configs.listeners import MAX_PORT, WILDCARDS, Listeners, host_and_port, parse_listeners, url_of
from service.settings.node_settings import NodeSettings
from storage_tiers.errors import InvalidConfig

#: The folder in the data directory that holds the directories of all brokers but the first, each named by its id.
BROKERS_FOLDER = "brokers"
RACK = "broker.rack"


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """`settings` are complete except for `supervised`. The broker that `goes_first` is started before the others and stopped
    after them, because it has their controller."""

    broker_id: int
    settings: NodeSettings
    goes_first: bool


@dataclass(frozen=True, slots=True)
class Machine:
    """`rack` is the name of the machine, for `broker.rack`; `controller` is the address of the first broker's controller;
    `ports` are the bound ports of the node's listeners, by name."""

    rack: str
    controller: str
    ports: Mapping[str, int]


def ids_of(settings: NodeSettings, brokers: int) -> range:
    return range(settings.node_id, settings.node_id + brokers)


def plan(settings: NodeSettings, brokers: int, machine: Machine) -> list[BrokerPlan]:
    """The plan of each broker. Raises InvalidConfig if there are no ports left."""
    ports = _OwnPorts(_given_ports(settings, machine))
    return [
        _broker(settings, broker_id, machine, ports, first=broker_id == settings.node_id)
        for broker_id in ids_of(settings, brokers)
    ]


def _broker(settings: NodeSettings, broker_id: int, machine: Machine, ports: _OwnPorts, *, first: bool) -> BrokerPlan:
    asked = parse_listeners(settings.listeners, settings.advertised_listeners, settings.listener_security_protocol_map)
    own = {each.listener: ports.after(each.port) for each in asked.bound}
    has_controller = first and settings.controller is None
    changes: dict[str, object] = {
        "node_id": broker_id,
        "brokers": 1,
        "roles": settings.roles if first else None,
        "listeners": _joined(each._replace(port=own[each.listener]) for each in asked.bound),
        "grpc_listener": settings.grpc_listener if first else ports.address_after(settings.grpc_listener),
        "http_listener": ports.address_after(settings.http_listener),
        "controller": None if has_controller else settings.controller or _reachable(machine.controller),
        "controller_listener": machine.controller if has_controller else None,
        "broker": {RACK: machine.rack, **settings.broker},
    }
    if settings.advertised_listeners is not None:
        changes["advertised_listeners"] = _advertised(asked, machine.ports, own)
    if not first:
        changes |= {
            "data_dir": settings.data_dir / BROKERS_FOLDER / str(broker_id),
            "new_cluster": False,
            "take_over": None,
            "verify": False,
        }
    return BrokerPlan(broker_id, settings.model_copy(update=changes), has_controller)


def _advertised(asked: Listeners, bound: Mapping[str, int], own: Mapping[str, int]) -> str:
    """The broker's advertised listeners. Each advertised port is as far from the node's advertised port as the broker's own
    port is from the node's bound port, so that a range of ports can be mapped."""
    return _joined(
        each._replace(
            port=each.port + own[each.listener] - bound[each.listener] if each.port and own[each.listener] else 0
        )
        for each in asked.advertised
    )


def _joined(listeners: Iterable[Endpoint]) -> str:
    return ",".join(map(url_of, listeners))


def _reachable(listener: str) -> str:
    """The address at which a process of this machine reaches that listener."""
    host, port = host_and_port(listener)
    return text_of("127.0.0.1" if host in WILDCARDS else host, port)


def _given_ports(settings: NodeSettings, machine: Machine) -> set[int]:
    others = (settings.grpc_listener, settings.http_listener, machine.controller)
    return set(machine.ports.values()) | {host_and_port(each)[1] for each in others}


class _OwnPorts:
    """Assigns ports to brokers, none of them twice and none of `given`."""

    def __init__(self, given: set[int]) -> None:
        self._taken = set(given)

    def after(self, port: int) -> int:
        """The next port after `port`. If `port` is 0, returns 0 (any free port). Raises InvalidConfig if no port is left."""
        if port == 0:
            return 0
        found = next((each for each in range(port + 1, MAX_PORT + 1) if each not in self._taken), None)
        if found is None:
            raise InvalidConfig(
                f"no port is left after {port} for the brokers' own listeners; choose lower ports, or start fewer --brokers"
            )
        self._taken.add(found)
        return found

    def address_after(self, address: str) -> str:
        host, port = host_and_port(address)
        return text_of(host, self.after(port))
