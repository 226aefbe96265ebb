"""GetTelemetrySubscriptions and PushTelemetry (KIP-714), and subscriptions as configs, without and with a receiver."""

from __future__ import annotations

import struct
from typing import Any

from tests.differential.batches import CODECS, compressed
from tests.differential.judge import Setup, session
from tests.differential.message_trees import Tree
from tests.differential.peer import Peer
from tests.differential.sessions.common import UNKNOWN_ID

CLIENT_METRICS = 16
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
ONES = "00000000-0000-0000-0000-000000000001"
MOST_BYTES = 1 << 20


def gauge(name: bytes, value: int) -> bytes:
    """OpenTelemetry's MetricsData of one gauge with one point."""

    def message(number: int, body: bytes) -> bytes:
        return bytes([number << 3 | 2, len(body)]) + body

    point = message(1, bytes([6 << 3 | 1]) + struct.pack("<q", value))
    metric = message(1, name) + message(5, point)
    return message(1, message(2, message(2, metric)))


def padded(size: int) -> bytes:
    """MetricsData of the given size, made of one unknown field."""
    return bytes([15 << 3 | 2]) + varint(size - 4) + bytes(size - 1 - len(varint(size - 4)))


def varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out + bytes([number]))


GAUGE = gauge(b"judge.metric", 7)


def subscribed(peer: Peer, label: str, instance: str | None) -> Tree:
    return peer.ask("get_telemetry_subscriptions", 0, label, client_instance_id=instance)


def push(peer: Peer, label: str, opened: Tree, **values: Any) -> Tree:
    given: dict[str, Any] = {
        "client_instance_id": opened["client_instance_id"],
        "subscription_id": opened["subscription_id"],
        "terminating": False,
        "compression_type": 0,
        "metrics": GAUGE,
    }
    return peer.ask("push_telemetry", 0, label, **{**given, **values})


def alter(peer: Peer, label: str, name: str, *configs: tuple[str, str | None], op: int = SET, **values: Any) -> None:
    rows = [{"name": key, "value": value, "config_operation": op} for key, value in configs]
    resource = {"resource_type": CLIENT_METRICS, "resource_name": name, "configs": rows}
    peer.ask("incremental_alter_configs", 1, label, resources=[resource], **values)


def look(peer: Peer, label: str, name: str, keys: list[str] | None = None) -> None:
    resource = {"resource_type": CLIENT_METRICS, "resource_name": name, "configuration_keys": keys}
    peer.settle_same("describe_configs", 4, label, resources=[resource], include_synonyms=True)


def subscribing(peer: Peer, version: int) -> None:
    first = subscribed(peer, "a new client", None)
    subscribed(peer, "another one", None)
    subscribed(peer, "a client at once again", first["client_instance_id"])
    subscribed(peer, "by an id of its own", UNKNOWN_ID)
    subscribed(peer, "by a reserved id", ONES)


def pushing(peer: Peer, version: int) -> None:
    def ask(label: str, **values: Any) -> None:
        """Pushes as a new client each time, because a second push would come too early."""
        push(peer, label, peer.quietly("get_telemetry_subscriptions", 0, client_instance_id=None), **values)

    for codec, number in CODECS.items():
        ask(codec, compression_type=number, metrics=compressed(codec, GAUGE))
    ask("no metrics", metrics=b"")
    ask("no metrics, in a codec", metrics=b"", compression_type=4)
    ask("another codec than it says", compression_type=4)
    ask("codec 5", compression_type=5)
    ask("codec -1", compression_type=-1)
    ask("no metrics' encoding", metrics=b"\xff\xff\xff")
    ask("cut off", metrics=GAUGE[:-3])
    ask("as large as may be", metrics=bytes(MOST_BYTES))
    ask("too large", metrics=bytes(MOST_BYTES + 1))
    ask("another subscription", subscription_id=4711)
    ask("nobody", client_instance_id=None)
    ask("a reserved client", client_instance_id=ONES)
    ask("a client that never asked", client_instance_id=UNKNOWN_ID)
    opened = peer.quietly("get_telemetry_subscriptions", 0, client_instance_id=None)
    push(peer, "the first", opened)
    push(peer, "the second, too early", opened)
    push(peer, "the second too early and of another subscription", opened, subscription_id=4711)
    push(peer, "the last, early", opened, terminating=True)
    push(peer, "behind the last", opened)
    push(peer, "the last again", opened, terminating=True)
    subscribed(peer, "asked behind the last", opened["client_instance_id"])


@session("get_telemetry_subscriptions")
def subscribing_unadvertised(peer: Peer, version: int) -> None:
    subscribing(peer, version)


@session("get_telemetry_subscriptions", setup=Setup.RECEIVER)
def subscribing_with_receiver(peer: Peer, version: int) -> None:
    subscribing(peer, version)


@session("push_telemetry")
def pushing_unadvertised(peer: Peer, version: int) -> None:
    pushing(peer, version)


@session("push_telemetry", setup=Setup.RECEIVER)
def pushing_with_receiver(peer: Peer, version: int) -> None:
    pushing(peer, version)


@session("api_versions", setup=Setup.RECEIVER)
def advertised_with_receiver(peer: Peer, version: int) -> None:
    peer.ask("api_versions", version, "asked", client_software_name="judge", client_software_version="1.0")


@session("push_telemetry", setup=Setup.RECEIVER)
def inflated(peer: Peer, version: int) -> None:
    for label, size in (
        ("to the bound", MOST_BYTES),
        ("over the bound", MOST_BYTES + 1),
        ("to 20 MiB", 20 * MOST_BYTES),
    ):
        opened = peer.quietly("get_telemetry_subscriptions", 0, client_instance_id=None)
        push(peer, label, opened, compression_type=4, metrics=compressed("zstd", padded(size)))


@session("get_telemetry_subscriptions", setup=Setup.RECEIVER)
def subscribed_to_something(peer: Peer, version: int) -> None:
    """Subscriptions that match a client's software, id or address. When one changes, the client may ask again at once."""
    name = peer.named("s")
    peer.quietly("api_versions", 3, client_software_name="judge", client_software_version="1.2")
    opened = subscribed(peer, "to nothing", None)
    subscribed(peer, "too early", opened["client_instance_id"])
    alter(peer, "one metric", name, ("metrics", "org.judge."), ("interval.ms", "1000"))
    peer.settle_same("list_config_resources", 1, "it is there", resource_types=[CLIENT_METRICS])
    again = subscribed(peer, "something now", opened["client_instance_id"])
    push(peer, "by the old number", opened)
    subscribed(peer, "asked again for that", opened["client_instance_id"])
    push(peer, "too early", again)
    for label, match in (
        ("id", "client_id=jud.*"),
        ("another id", "client_id=jud"),
        ("software", "client_software_name=judge,client_software_version=1[.].*"),
        ("other software", "client_software_name=judge, client_software_version=2.*"),
        ("address", "client_source_address = 127.*"),
        ("port", "client_source_port=[0-9]+"),
        ("another instance", "client_instance_id=nobody"),
    ):
        alter(peer, f"match: {label}", name, ("match", match))
        look(peer, f"matched by: {label}", name)
        subscribed(peer, label, opened["client_instance_id"])
    alter(peer, "no match", name, ("match", None), op=DELETE)
    alter(peer, "everything", name, ("metrics", "*"))
    look(peer, "everything is subscribed to", name)
    subscribed(peer, "everything", None)
    for key in ("metrics", "interval.ms"):
        alter(peer, f"no {key}", name, (key, None), op=DELETE)
    look(peer, "nothing is left", name)
    subscribed(peer, "nothing again", None)


@session("get_telemetry_subscriptions", setup=Setup.RECEIVER)
def on_another_connection(peer: Peer, version: int) -> None:
    """The broker forgets a client when its connection closes."""
    opened = subscribed(peer, "first", None)
    push(peer, "a last push", opened, terminating=True)
    peer.close_connection()
    peer.settle_same("api_versions", 0, "the connection is closed")
    subscribed(peer, "the same again", opened["client_instance_id"])
    push(peer, "its push", opened)


@session("incremental_alter_configs", setup=Setup.RECEIVER)
def client_metrics(peer: Peer, version: int) -> None:
    name = peer.named("s")
    look(peer, "not there", name)
    look(peer, "not there, one key", name, ["metrics"])
    look(peer, "not there, unknown key", name, ["no.such.key"])
    alter(peer, "two keys", name, ("metrics", "a.,b."), ("interval.ms", "5000"))
    look(peer, "two keys are set", name)
    look(peer, "an unknown key of it", name, ["no.such.key", "metrics"])
    alter(peer, "append", name, ("metrics", "c."), op=APPEND)
    alter(peer, "append what is there", name, ("metrics", "a."), op=APPEND)
    look(peer, "appended", name)
    alter(peer, "subtract", name, ("metrics", "b."), op=SUBTRACT)
    alter(peer, "subtract what is not there", name, ("metrics", "z."), op=SUBTRACT)
    look(peer, "subtracted", name)
    alter(peer, "append to a number", name, ("interval.ms", "1"), op=APPEND)
    alter(peer, "empty name", "", ("metrics", "a."))
    for label, key, value in (
        ("unknown key", "no.such.key", "1"),
        ("no number", "interval.ms", "soon"),
        ("a short interval", "interval.ms", "99"),
        ("the shortest interval", "interval.ms", "100"),
        ("a long interval", "interval.ms", "3600001"),
        ("the longest interval", "interval.ms", "3600000"),
        ("match without equals", "match", "client_id"),
        ("match without value", "match", "client_id="),
        ("match with two equals", "match", "client_id=a=b"),
        ("match of something unknown", "match", "colour=red"),
        ("match of no pattern", "match", "client_id=("),
        ("match that may take for ever", "match", "client_id=(a+)+b"),
        ("an empty match", "match", ""),
        ("empty metrics", "metrics", ""),
        ("null", "metrics", None),
    ):
        alter(peer, label, name, (key, value))
    alter(peer, "only tried", name, ("interval.ms", "777"), validate_only=True)
    alter(peer, "only tried and wrong", name, ("interval.ms", "7"), validate_only=True)
    look(peer, "in the end", name)
    peer.settle_same("list_config_resources", 1, "listed", resource_types=[CLIENT_METRICS])
    peer.settle_same("list_config_resources", 0, "listed by the first version")
    keys = ("metrics", "interval.ms", "match")
    alter(peer, "all taken away", name, *((key, None) for key in keys), op=DELETE)
    look(peer, "gone", name)
    peer.settle_same("list_config_resources", 1, "not listed", resource_types=[CLIENT_METRICS])


@session("alter_configs", setup=Setup.RECEIVER)
def client_metrics_replaced(peer: Peer, version: int) -> None:
    name = peer.named("s")

    def replace(label: str, *configs: tuple[str, str | None]) -> None:
        rows = [{"name": key, "value": value} for key, value in configs]
        resource = {"resource_type": CLIENT_METRICS, "resource_name": name, "configs": rows}
        peer.ask("alter_configs", version, label, resources=[resource])
        look(peer, f"after: {label}", name)

    replace("two keys", ("metrics", "a."), ("interval.ms", "1000"))
    replace("the other is taken away", ("metrics", "b."))
    replace("wrong", ("interval.ms", "1"))
    replace("unknown key", ("no.such.key", "1"))
    replace("null", ("metrics", None))
    replace("none")
