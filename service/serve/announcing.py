"""Announces the addresses of a serving node, to programs (`endpoints.json`, the log) and to the user."""

from __future__ import annotations

import json
import logging
import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from grpc_api.contract.topics import text_of
from service.configs.listeners import Listeners
from service.settings.node_settings import NodeSettings
from storage_tiers import events

log = logging.getLogger("tidelog")

#: Files in the data directory: the addresses of the running node, and those of a broker that a supervisor has started. A
#: supervised broker is only a part of the supervisor's node.
ENDPOINTS, BROKER_ENDPOINTS = "endpoints.json", "broker-endpoints.json"
#: Shown instead of an empty host, which means every address of this machine.
_EVERYWHERE = "0.0.0.0"


@dataclass(frozen=True, slots=True)
class Addresses:
    """A node's addresses as HOST:PORT. `kafka` has the bound addresses, and `advertised` the addresses in answers to clients.
    Both are keyed by listener name, in the listeners' order."""

    kafka: dict[str, str]
    advertised: dict[str, str]
    grpc: str
    http: str

    @classmethod
    def of(cls, listeners: Listeners, *, grpc: tuple[str, int], http: tuple[str, int]) -> Addresses:
        """The addresses of resolved listeners."""
        return cls(
            {each.listener: _shown(each.host, each.port) for each in listeners.bound},
            {each.listener: _shown(each.host, each.port) for each in listeners.advertised},
            _shown(*grpc),
            _shown(*http),
        )

    @property
    def bootstrap(self) -> str:
        """The address that a client on this machine connects to."""
        return next(iter(self.advertised.values()))

    def document(self, cluster_id: str) -> bytes:
        """The content of `endpoints.json`."""
        addresses = {"kafka": self.kafka, "advertised": self.advertised, "grpc": self.grpc, "http": self.http}
        return json.dumps({**addresses, "cluster_id": cluster_id, "pid": os.getpid()}, indent=1).encode()

    def lines(self) -> list[str]:
        """One line per Kafka listener."""
        if list(self.kafka) == ["PLAINTEXT"] and self.kafka == self.advertised:
            return [self.bootstrap]
        width = max(map(len, self.kafka))
        return [
            f"{name:{width}} {address}"
            + ("" if address == self.advertised[name] else f", advertised as {self.advertised[name]}")
            for name, address in self.kafka.items()
        ]


def _shown(host: str, port: int) -> str:
    return text_of(host or _EVERYWHERE, port)


def announce(addresses: Addresses, cluster_id: str, topics: int, took_ms: int) -> None:
    """Writes `node.listening` to the log."""
    events.info(
        log,
        "node.listening",
        kafka=_joined(addresses.kafka),
        advertised=_joined(addresses.advertised),
        grpc=addresses.grpc,
        http=addresses.http,
        cluster_id=cluster_id,
        topics=topics,
        ms=took_ms,
    )


def invite(settings: NodeSettings, addresses: Addresses, cluster_id: str, trouble: str | None) -> None:
    """Prints the addresses, a problem of the store, if any, and commands to try. Prints nothing if the log format is JSON, or
    if a supervisor prints this."""
    if settings.log_format != "text" or settings.supervised is not None:
        return
    kafka, tidelog = addresses.bootstrap, command_here()
    listeners = "\n          ".join(addresses.lines())
    warning = (
        ""
        if trouble is None
        else f"\nThe store cannot be used yet: {trouble}\nRecords stay on the local disk until it can be used.\n"
    )
    print(
        f"""tidelog listens
  Kafka   {listeners}
  gRPC    {addresses.grpc}
  HTTP    {addresses.http}  (/healthz, /readyz, /metrics, /stats)
  data    {Path(settings.data_dir).resolve()}
  store   {settings.store}
  cluster {cluster_id}
{warning}
Talk to it:
  {tidelog} topic create demo --partitions 3 --bootstrap-server {kafka}
  echo hello | {tidelog} produce demo --bootstrap-server {kafka}
  {tidelog} consume demo --exit-at-end --bootstrap-server {kafka}
Stop it with Ctrl-C.""",
        flush=True,
    )


def _joined(addresses: dict[str, str]) -> str:
    return ",".join(f"{name}://{address}" for name, address in addresses.items())


def command_here() -> str:
    """The `tidelog` command for a shell in this directory: its name, or its path if the environment is not activated. A service
    manager starts a node in `/`, where no shell reads its log, so a relative path would be of no use there."""
    beside = os.path.join(os.path.dirname(sys.executable), "tidelog")
    if shutil.which("tidelog") is not None or not os.path.exists(beside):
        return "tidelog"
    return shlex.quote(beside if os.getcwd() == os.sep else min(os.path.relpath(beside), beside, key=len))
