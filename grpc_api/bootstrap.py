"""Several addresses of one cluster as a single gRPC target, like Kafka's `bootstrap.servers`.

A channel with several addresses uses the first that connects, and tries all again when the connection breaks (gRPC's
`pick_first`). gRPC resolves the name of a single host only, so the names of several are resolved here, once, when the client
connects.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

from grpc_api.preflight import require_grpc
from storage_tiers.errors import InvalidRequest, LeaderNotAvailable, LogError

#: gRPC's names of the address families, in the order of preference: a target has addresses of one family.
_FAMILIES = ((socket.AF_INET, "ipv4", "{}:{}"), (socket.AF_INET6, "ipv6", "[{}]:{}"))
_Resolved = dict[int, list[str]]


async def target_of(addresses: Sequence[str]) -> str:
    """The target of a channel to the nodes at `addresses` (HOST:PORT). Returns once one of them answers as gRPC, or stays
    silent. Raises the LeaderNotAvailable or InvalidRequest of a single address; LeaderNotAvailable if none of several
    answers."""
    failed: list[LogError] = []
    for address in addresses:
        try:
            await require_grpc(address)
            break
        except (LeaderNotAvailable, InvalidRequest) as error:
            failed.append(error)
    else:
        raise failed[0] if len(failed) == 1 else LeaderNotAvailable("; ".join(map(str, failed)))
    if len(addresses) == 1:
        return addresses[0]
    # The node that has answered comes first.
    in_order = [*addresses[len(failed) :], *addresses[: len(failed)]]
    return _target(in_order, await asyncio.gather(*map(_resolved, in_order)))


def _target(addresses: Sequence[str], found: Sequence[_Resolved]) -> str:
    """Names the addresses of one family. A host that has none of that family, or cannot be resolved, is left out."""
    for family, scheme, form in _FAMILIES:
        if found[0].get(family):
            ports = [address.rpartition(":")[2] for address in addresses]
            listed = [
                form.format(each, port)
                for port, hosts in zip(ports, found, strict=True)
                for each in hosts.get(family, ())
            ]
            return f"{scheme}:{','.join(dict.fromkeys(listed))}"
    raise LeaderNotAvailable(f"{addresses[0]} cannot be resolved any longer; retry")


async def _resolved(address: str) -> _Resolved:
    """The numeric addresses of a host by address family; empty if its name cannot be resolved."""
    host, _, port = address.rpartition(":")
    try:
        rows = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError:
        return {}
    found: _Resolved = {}
    for family, _, _, _, address_of_socket in rows:
        found.setdefault(family, []).append(str(address_of_socket[0]))
    return found
