"""Shell completion of topic and group names, from the node that the command line names, and of config names.

Completion must be fast and silent. After `PATIENCE_S`, or on any error, it offers nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from service.cli.kafka import client_config

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

PATIENCE_S = 1.0


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    bootstrap = ctx.params.get("bootstrap")  # None if the address or the profile is wrong
    return [] if bootstrap is None else [name for name in _topics(bootstrap) if name.startswith(incomplete)]


def complete_group(ctx: typer.Context, incomplete: str) -> list[str]:
    bootstrap = ctx.params.get("bootstrap")
    return [] if bootstrap is None else [name for name in _groups(bootstrap) if name.startswith(incomplete)]


def complete_topic_config(incomplete: str) -> list[str]:
    from service.configs.topic_keys import TOPIC_KEYS

    return [f"{key.name}=" for key in TOPIC_KEYS if not key.hidden and key.name.startswith(incomplete)]


def complete_topic_config_name(incomplete: str) -> list[str]:
    return [name.removesuffix("=") for name in complete_topic_config(incomplete)]


def complete_broker_config(incomplete: str) -> list[str]:
    return [f"{name}=" for name in complete_broker_config_name(incomplete)]


def complete_broker_config_name(incomplete: str) -> list[str]:
    from service.configs.broker_keys import BROKER_KEYS

    return [key.name for key in BROKER_KEYS if not key.hidden and key.name.startswith(incomplete)]


def complete_config_name(ctx: typer.Context, incomplete: str) -> list[str]:
    """Topic configs if the command line names a topic, otherwise broker configs."""
    of_topic = ctx.params.get("topic") is not None
    return complete_topic_config_name(incomplete) if of_topic else complete_broker_config_name(incomplete)


def _topics(bootstrap: str) -> list[str]:
    return _asked(bootstrap, lambda admin: list(admin.list_topics(timeout=PATIENCE_S).topics))


def _groups(bootstrap: str) -> list[str]:
    def ask(admin: AdminClient) -> list[str]:
        listed = admin.list_consumer_groups(request_timeout=PATIENCE_S).result(PATIENCE_S)
        return [each.group_id for each in listed.valid]

    return _asked(bootstrap, ask)


def _asked(bootstrap: str, ask: Callable[[AdminClient], list[str]]) -> list[str]:
    """Runs `ask` in its own thread, because resolving a host name may take longer than the client's timeouts."""
    found: list[str] = []

    def run() -> None:
        from confluent_kafka.admin import AdminClient

        try:
            found.extend(ask(AdminClient(client_config(bootstrap))))
        except Exception:  # noqa: BLE001 - after any error there is nothing to offer
            return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    return sorted(found)
