"""A node's bound and advertised addresses, from Kafka's `listeners`, `advertised.listeners` and
`listener.security.protocol.map`. Pure: the ports that the kernel chose and the machine's name are arguments.

Invariants: names, and ports other than 0, are unique by Kafka's rules. Every listener is advertised at an address that clients
can connect to. Whether an advertised address leads to this node depends on the network, and is not checked.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from grpc_api.contract.topics import Endpoint, text_of
from storage_tiers.errors import InvalidConfig

DEFAULT_PROTOCOLS = "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT"
#: Kafka's protocols; only the first is supported.
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
#: Hosts that bind every address of a machine.
WILDCARDS = ("", "0.0.0.0", "::")
MAX_PORT = 65535

_ENDPOINT = re.compile(r"(.*)://\[?([0-9a-zA-Z\-%._:]*)\]?:(\d+)")
_ADDRESS = re.compile(r"\[?([0-9a-zA-Z\-%._:]*?)\]?:(\d+)")


def url_of(at: Endpoint) -> str:
    """NAME://HOST:PORT, the syntax of `listeners`."""
    return f"{at.listener}://{text_of(at.host, at.port)}"


def host_and_port(text: str) -> tuple[str, int]:
    """Parses HOST:PORT, [IPV6]:PORT or :PORT. Raises ValueError for other text."""
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found[2]) > MAX_PORT:
        raise ValueError("write HOST:PORT, or :PORT for every address of this machine")
    return found[1], int(found[2])


@dataclass(frozen=True, slots=True)
class Listeners:
    """`bound` are the addresses to listen on. In `bound`, port 0 means a free port, and an empty host means every address.
    `advertised` has the same names. In `advertised`, port 0 means the listener's own port, and an empty host means this
    machine's name."""

    bound: tuple[Endpoint, ...]
    advertised: tuple[Endpoint, ...]

    def resolved(self, ports: Mapping[str, int], machine: str) -> Listeners:
        """The same listeners with the bound `ports` (by listener name), and with `machine` for empty advertised hosts."""
        return Listeners(
            tuple(each._replace(port=ports[each.listener]) for each in self.bound),
            tuple(
                each._replace(host=each.host or machine, port=each.port or ports[each.listener])
                for each in self.advertised
            ),
        )

    @property
    def needs_machine(self) -> bool:
        """Whether an advertised address contains this machine's name."""
        return any(not each.host for each in self.advertised)


def parse_listeners(listeners: str, advertised: str | None = None, protocols: str | None = None) -> Listeners:
    """Parses `listeners`, `advertised.listeners` and `listener.security.protocol.map`; None means not set. Raises InvalidConfig
    with the wrong value, the reason, and a correct form."""
    known = _protocols(DEFAULT_PROTOCOLS if protocols is None else protocols)
    bound = _endpoints("listeners", listeners)
    _check_protocols(bound, known)
    _check_ports(bound, listeners)
    if advertised is None:
        announced, key = bound, "listeners"
    else:
        announced, key = _endpoints("advertised.listeners", advertised), "advertised.listeners"
        _check_names(bound, announced)
    for each in announced:
        if each.host in WILDCARDS[1:]:
            hint = f"{each.listener}://HOST:{each.port or 'PORT'}"
            raise InvalidConfig(
                f"{key} {url_of(each)}: clients cannot connect to {each.host}; write {hint} in "
                "advertised.listeners, with a name or address of this machine that clients reach"
            )
    return Listeners(bound, announced)


def _protocols(text: str) -> Mapping[str, str]:
    """The protocols by listener name."""
    found = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        name, colon, protocol = (part.strip().upper() for part in pair.partition(":"))
        if not colon or not name or protocol not in PROTOCOLS:
            raise InvalidConfig(
                f"listener.security.protocol.map: {pair!r} is not NAME:PROTOCOL; write {name or 'NAME'}:PLAINTEXT "
                f"(Kafka's protocols are {', '.join(PROTOCOLS)})"
            )
        found[name] = protocol
    return found


def _endpoints(key: str, text: str) -> tuple[Endpoint, ...]:
    found = []
    for each in filter(None, map(str.strip, text.split(","))):
        parts = _ENDPOINT.fullmatch(each)
        if parts is None or not parts[1] or int(parts[3]) > MAX_PORT:
            raise InvalidConfig(
                f"{key}: {each!r} is not a listener; write NAME://HOST:PORT, as in PLAINTEXT://127.0.0.1:9092"
            )
        found.append(Endpoint(parts[1].upper(), parts[2], int(parts[3])))
    if not found:
        raise InvalidConfig(f"{key} names no listener; write NAME://HOST:PORT, as in PLAINTEXT://127.0.0.1:9092")
    twice = _twice([each.listener for each in found])
    if twice:
        raise InvalidConfig(f"{key}: Each listener must have a different name, and {', '.join(twice)} appears twice")
    return tuple(found)


def _twice(names: Sequence[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _check_protocols(bound: Sequence[Endpoint], known: Mapping[str, str]) -> None:
    for each in bound:
        protocol = known.get(each.listener)
        if protocol is None:
            raise InvalidConfig(
                f"listeners {url_of(each)}: No security protocol defined for listener {each.listener}; add "
                f"{each.listener}:PLAINTEXT to listener.security.protocol.map"
            )
        if protocol != PROTOCOLS[0]:
            raise InvalidConfig(
                f"listeners {url_of(each)}: the protocol of listener {each.listener} is {protocol}, and this version supports "
                f"only PLAINTEXT; write {each.listener}:PLAINTEXT in listener.security.protocol.map, and restrict who can "
                "reach that address"
            )


def _check_ports(bound: Sequence[Endpoint], text: str) -> None:
    """As in Kafka, two listeners may share a port only if one is bound to an IPv4 and the other to an IPv6 address."""
    for port, count in Counter(each.port for each in bound if each.port).items():
        if count == 1:
            continue
        families = [_family(each.host) for each in bound if each.port == port]
        if sorted(families) != [4, 6]:
            raise InvalidConfig(
                f"listeners {text}: Each listener must have a different port, unless one has an IPv4 address and the "
                f"other one an IPv6 address; {port} appears twice"
            )


def _family(host: str) -> int:
    """4 or 6 for an IP address; 0 for a host name or for all addresses."""
    try:
        address: IPv4Address | IPv6Address = ip_address(host.partition("%")[0])
    except ValueError:
        return 0
    return address.version


def _check_names(bound: Sequence[Endpoint], announced: Sequence[Endpoint]) -> None:
    names, announced_names = [each.listener for each in bound], [each.listener for each in announced]
    strange = [name for name in announced_names if name not in names]
    if strange:
        raise InvalidConfig(
            f"advertised.listeners names {', '.join(strange)}, which listeners does not: it has {', '.join(names)}; add it "
            "there, or take it out here"
        )
    missing = [name for name in names if name not in announced_names]
    if missing:
        raise InvalidConfig(
            f"advertised.listeners does not name {', '.join(missing)}: clients that connect there would get no broker's "
            "address; add it, or take it out of listeners"
        )
