"""Limits the rate of moves while a command waits for them, with the configs that Kafka's own tool sets (KIP-73):
`leader.replication.throttled.rate` of all brokers, and `leader.replication.throttled.replicas` of each topic.

As in Kafka's tool, the configs are removed when the moves end, even if another command has set them, because a forgotten
throttle slows every later move. Two commands at a time share these configs: the rate set last applies to both, until one of
them ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from service.cli.client.config_requests import (
    BROKER,
    DELETE,
    SET,
    TOPIC,
    ConfigChange,
    alter_configs,
)
from service.cli.client.move_planner import PlannedMove
from service.cli.errors import CommandError

RATE, REPLICAS = "leader.replication.throttled.rate", "leader.replication.throttled.replicas"
EVERY_BROKER, ALL_REPLICAS = "", "*"


class _Config(NamedTuple):
    """A config of one resource. `name` is the topic, or empty for all brokers."""

    kind: int
    name: str
    key: str


class MoveThrottle:
    """Limits `moves` to `bytes_per_s`; None sets no limit."""

    def __init__(self, address: str, moves: Iterable[PlannedMove], bytes_per_s: int | None) -> None:
        self._address = address
        topics = sorted({each.topic for each in moves}) if bytes_per_s is not None else []
        self._wanted = {_Config(TOPIC, topic, REPLICAS): ALL_REPLICAS for topic in topics}
        if topics:
            self._wanted[_Config(BROKER, EVERY_BROKER, RATE)] = str(bytes_per_s)
        self._is_set = False

    def begin(self) -> None:
        """Sets the configs. If a broker refuses one, removes those already set and raises CommandError."""
        try:
            for config, value in self._wanted.items():
                self._change(config, SET, value)
        except CommandError:
            with suppress(CommandError):
                self.end()
            raise
        self._is_set = bool(self._wanted)

    def end(self) -> None:
        for config in self._wanted:
            self._change(config, DELETE, None)
        self._is_set = False

    def remains(self) -> Sequence[str]:
        """Returns a sentence for the user if the configs are still set because moves continue."""
        if not self._is_set:
            return ()
        return (f"the throttle stays; `tidelog configs alter --delete {RATE}` ends it once they have moved",)

    def _change(self, config: _Config, operation: int, value: str | None) -> None:
        change = ConfigChange(config.key, operation, value)
        alter_configs(self._address, config.kind, config.name, [change], validate_only=False)
