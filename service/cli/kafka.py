"""Shared by commands that talk to a node: the node's address, librdkafka's clients, and sentences for its errors.

The address comes from the first of these that is given: `--bootstrap-server`, the profile that `--profile` names,
TIDELOG_BOOTSTRAP_SERVER, the profile that TIDELOG_PROFILE names, the profile `default`. Otherwise it is port 9092 of this
machine.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from service.cli.errors import ADDRESS_ORIGIN, CommandError, NodeUnreachable
from service.cli.listener import require_reachable, split_address
from service.cli.profiles import DEFAULT_PROFILE, PROFILES, bootstrap_of

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka import Node as KafkaNode
    from confluent_kafka.admin import AdminClient, DescribeClusterResult, TopicDescription

T = TypeVar("T")

CONNECT_TIMEOUT_S = 2.0
REQUEST_TIMEOUT_S = 30.0
#: librdkafka's limits. Beyond them it raises an error without a request to the node.
MOST_PARTITIONS = 100_000
HIGHEST_PARTITION = 2**31 - 1
HIGHEST_OFFSET = 2**63 - 1
#: The longest reconnect back-off. It is short because a user is waiting.
RECONNECT_BACKOFF_MS = 1000
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
#: The read-only broker config with the address of a node's gRPC listener.
GRPC_LISTENER = "tidelog.grpc.listener"
#: The same config for the HTTP listener, which serves the metrics.
HTTP_LISTENER = "tidelog.http.listener"
#: `tidelog serve` ignores this variable, although it refuses unknown ones.
ENVIRONMENT_ADDRESS = "TIDELOG_BOOTSTRAP_SERVER"

_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\s,\[\]:]+):(\d{1,5})")
_NAMED_PROFILE = "tidelog.profile"
#: Click's name for a value from the command line.
_TYPED = "COMMANDLINE"


def check_bootstrap(text: str) -> None:
    """Raises ValueError if the text is not a list of HOST:PORT, separated by commas."""
    for address in text.split(","):
        found = _ADDRESS.fullmatch(address)
        if found is None or not 0 < int(found[1]) < 65536:
            raise ValueError(f"{address!r} is not an address: write HOST:PORT, several separated by commas")


def _note_profile(ctx: typer.Context, value: str | None) -> str | None:
    if value is not None:
        ctx.meta[_NAMED_PROFILE] = value, _source(ctx, "profile") == _TYPED
    return value


def _resolve_bootstrap(ctx: typer.Context, value: str) -> str:
    """The command line overrides the environment, and an address overrides a profile."""
    profile, typed_profile = ctx.meta.get(_NAMED_PROFILE, (None, False))
    source = _source(ctx, "bootstrap")
    typed = source == _TYPED
    if typed or (source == "ENVIRONMENT" and not typed_profile):
        try:
            check_bootstrap(value)
        except ValueError as error:
            hint = "--bootstrap-server" if typed else ENVIRONMENT_ADDRESS
            raise typer.BadParameter(str(error), param_hint=hint) from None
        if not typed:
            ctx.meta[ADDRESS_ORIGIN] = ENVIRONMENT_ADDRESS
        return value
    path = Path(typer.get_app_dir("tidelog"), PROFILES)
    found = bootstrap_of(profile, path, check_bootstrap)
    if found is None:
        return DEFAULT_BOOTSTRAP
    ctx.meta[ADDRESS_ORIGIN] = f"profile {profile or DEFAULT_PROFILE} of {path}"
    return found


def _source(ctx: typer.Context, parameter: str) -> str:
    source = ctx.get_parameter_source(parameter)
    return "" if source is None else source.name


Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        "-b",
        metavar="HOST:PORT",
        help="Kafka listeners of one or more nodes, separated by commas.",
        envvar=ENVIRONMENT_ADDRESS,
        callback=_resolve_bootstrap,
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME",
        help="A profile: the name of a table in tidelog/profiles.toml in the config directory.",
        envvar="TIDELOG_PROFILE",
        is_eager=True,
        expose_value=False,
        callback=_note_profile,
    ),
]


def client_config(bootstrap: str) -> dict[str, Any]:
    """The settings of every librdkafka client. They turn off librdkafka's log, because the commands report its errors."""
    return {
        "bootstrap.servers": bootstrap,
        "client.id": "tidelog-cli",
        "log_level": 0,
        "socket.keepalive.enable": True,
        "reconnect.backoff.max.ms": RECONNECT_BACKOFF_MS,
    }


def connect_admin(bootstrap: str) -> AdminClient:
    from confluent_kafka.admin import AdminClient

    require_reachable(bootstrap)
    return AdminClient(client_config(bootstrap))


def outcome(bootstrap: str, future: Future[T], what: str, topic: str | None = None) -> T:
    """The result of one admin call, or its failure as a CommandError that begins with `what`. For `topic` see `explain`."""
    from confluent_kafka import KafkaException

    try:
        return future.result(REQUEST_TIMEOUT_S + CONNECT_TIMEOUT_S)
    except KafkaException as error:
        raise explain(bootstrap, error.args[0], what, topic) from None
    except TimeoutError:
        raise NodeUnreachable(f"the node at {bootstrap} did not answer in {REQUEST_TIMEOUT_S:.0f} s") from None


def as_command_error(bootstrap: str, error: KafkaException, what: str) -> CommandError:
    return explain(bootstrap, error.args[0], what)


def explain(bootstrap: str, error: KafkaError, what: str, topic: str | None = None) -> CommandError:
    """An error of librdkafka as a sentence: the node is unreachable, or has refused a request. `topic` is the topic of the
    request, if any; if it does not exist, the error is `unknown_topic`."""
    if "waiting for controller" in error.str():
        return NodeUnreachable(
            f"the node with the cluster's controller does not answer ({error.str()}); start that node"
        )
    if error.name() in ("_TRANSPORT", "_TIMED_OUT", "_ALL_BROKERS_DOWN", "_RESOLVE"):
        return NodeUnreachable(f"the node at {bootstrap} does not answer: {error.str()}; is that its Kafka port?")
    if topic is not None and error.name() == "UNKNOWN_TOPIC_OR_PART":
        return unknown_topic(bootstrap, topic)
    sentence = error.str().removeprefix("Broker: ").removeprefix("Local: ")
    return CommandError(f"{what}: {sentence} ({error.name().removeprefix('_')})")


def unknown_topic(bootstrap: str, name: str) -> CommandError:
    """The error suggests topics with a similar name, if the node lists them."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        there = list(AdminClient(client_config(bootstrap)).list_topics(timeout=CONNECT_TIMEOUT_S).topics)
    except KafkaException:
        there = []
    near = difflib.get_close_matches(name, there, 2)
    hint = f" (did you mean {' or '.join(near)}?)" if near else ""
    return CommandError(f"there is no topic {name}{hint}; `tidelog topic list` shows all")


def pairs(texts: list[str] | None, option: str) -> Mapping[str, str]:
    """The `KEY=VALUE` words of a repeatable option."""
    found = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not key.strip() or not equals:
            raise typer.BadParameter(f"{text!r}: write KEY=VALUE", param_hint=option)
        found[key.strip()] = value.strip()
    return found


def all_topics(bootstrap: str, admin: AdminClient) -> list[str]:
    """All topic names, sorted."""
    from confluent_kafka import KafkaException

    try:
        return sorted(admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics)
    except KafkaException as error:
        raise as_command_error(bootstrap, error, "cannot list topics") from None


def grpc_address(bootstrap: str, admin: AdminClient) -> str:
    """The address of the gRPC listener of the controller's node. Raises CommandError if it has none."""
    cluster = _described(bootstrap, admin)
    return _grpc_address_of(bootstrap, admin, cluster.controller or cluster.nodes[0])


def grpc_addresses(bootstrap: str, admin: AdminClient) -> dict[int, str]:
    """The addresses of all brokers' gRPC listeners by node id. Raises CommandError if a broker has none."""
    return {node.id: _grpc_address_of(bootstrap, admin, node) for node in _described(bootstrap, admin).nodes}


def _described(bootstrap: str, admin: AdminClient) -> DescribeClusterResult:
    described: Future[DescribeClusterResult] = admin.describe_cluster(request_timeout=REQUEST_TIMEOUT_S)
    return outcome(bootstrap, described, "cannot describe the cluster")


def _grpc_address_of(bootstrap: str, admin: AdminClient, node: KafkaNode) -> str:
    from confluent_kafka.admin import ConfigResource, ResourceType

    resource = ConfigResource(ResourceType.BROKER, str(node.id))
    future = admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)[resource]
    entries = outcome(bootstrap, future, f"cannot describe the configs of node {node.id}")
    entry = entries.get(GRPC_LISTENER)
    if entry is None or not entry.value:
        raise CommandError(f"node {node.id} at {bootstrap} has no config {GRPC_LISTENER}, so it is not a tidelog node")
    return str(entry.value)


def http_addresses(bootstrap: str, timeout_s: float = REQUEST_TIMEOUT_S) -> list[str]:
    """The addresses of all nodes' HTTP listeners (/metrics, /readyz). Raises CommandError if a node has none."""
    from confluent_kafka.admin import ConfigResource, ResourceType

    admin = connect_admin(bootstrap)
    described = admin.describe_cluster(request_timeout=timeout_s)
    cluster = outcome(bootstrap, described, "cannot describe the cluster")
    found = []
    for node in cluster.nodes:
        resource = ConfigResource(ResourceType.BROKER, str(node.id))
        future = admin.describe_configs([resource], request_timeout=timeout_s)[resource]
        entry = outcome(bootstrap, future, f"cannot describe the configs of node {node.id}").get(HTTP_LISTENER)
        if entry is None or not entry.value:
            raise CommandError(
                f"node {node.id} at {bootstrap} has no config {HTTP_LISTENER}; give its HTTP address with --http"
            )
        host, port = split_address(str(entry.value))
        # If a node listens on all addresses, its advertised host is used.
        found.append(f"{node.host if host in ('0.0.0.0', '::') else host}:{port}")
    return found


def describe_topics(bootstrap: str, admin: AdminClient, names: Sequence[str]) -> list[TopicDescription]:
    from confluent_kafka import TopicCollection

    if not names:
        return []
    futures = admin.describe_topics(TopicCollection(list(names)), request_timeout=REQUEST_TIMEOUT_S)
    return [outcome(bootstrap, futures[name], f"cannot describe {name}", name) for name in names]
