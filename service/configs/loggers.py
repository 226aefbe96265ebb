"""The levels of this process's loggers as configs of the resource "broker logger" (KIP-412), readable and changeable at run
time.

Levels are not stored, as in Kafka, so the next start uses `--log-level` again. Wording follows Kafka 4.2.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from grpc_api.contract.topics import AlterOp, ConfigAlteration, ConfigEntry, ConfigKind, ConfigSource
from service.configs.types import is_number
from storage_tiers import events
from storage_tiers.errors import InvalidConfig, InvalidRequest

log = logging.getLogger("tidelog")

ROOT = "root"
#: Kafka's names with Python's levels, quietest first. Python has no TRACE.
LEVELS = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": 5,
}


class Loggers:
    """Log levels of this node as configs of the resource BROKER_LOGGER (KIP-412). They last until the process ends."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id

    def describe(self, broker: str, names: Sequence[str] | None = None) -> list[ConfigEntry]:
        """Every logger with its effective level. Raises InvalidRequest for a broker other than this one."""
        if not broker:
            raise InvalidRequest("Broker id must not be empty")
        if not broker.isdecimal():
            raise InvalidRequest(f"Broker id must be an integer, but it is: {broker}")
        if not is_number(broker, self._node_id):
            raise InvalidRequest(f"Unexpected broker id, expected {self._node_id} but received {broker}")
        wanted = None if names is None else set(names)
        source, kind = ConfigSource.DYNAMIC_BROKER_LOGGER, ConfigKind.UNKNOWN
        return [
            ConfigEntry(name, _level(logger), source, kind)
            for name, logger in sorted(_loggers().items())
            if wanted is None or name in wanted
        ]

    def alter(self, broker: str, alterations: Sequence[ConfigAlteration], *, validate_only: bool) -> None:
        """Makes all alterations or none. DELETE resets a logger to the level of its parent. Raises InvalidConfig for a logger
        or a level that does not exist, InvalidRequest for an illegal operation."""
        if not broker.isdecimal():
            raise InvalidRequest(f"Node id must be an integer, but it is: {broker}")
        if not is_number(broker, self._node_id):
            raise InvalidRequest(f"Unexpected node id. Expected {self._node_id}, but received {broker}")
        if len({alteration.name for alteration in alterations}) != len(alterations):
            raise InvalidRequest("Error due to duplicate config keys")
        known = _loggers()
        for alteration in alterations:
            _check(known, alteration)
        for name, op, level in () if validate_only else alterations:
            known[name].setLevel(LEVELS[str(level)] if op is AlterOp.SET else logging.NOTSET)
            # The logger `tidelog` logs this, because the changed logger may now be off.
            events.info(log, "logger.changed", name=name, to=level if op is AlterOp.SET else None)


def _check(known: dict[str, logging.Logger], alteration: ConfigAlteration) -> None:
    name, op, level = alteration
    if op in (AlterOp.APPEND, AlterOp.SUBTRACT):
        raise InvalidRequest(f"{op.name} operation is not allowed for the BROKER_LOGGER resource")
    if name not in known:
        raise InvalidConfig(f"Logger {name} does not exist!")
    if op is AlterOp.DELETE and name == ROOT:
        raise InvalidRequest("Removing the log level of the root logger is not allowed")
    if op is AlterOp.SET and level is None:
        raise InvalidRequest(f"Null value not supported for : {name}")
    if op is AlterOp.SET and level not in LEVELS:
        raise InvalidConfig(
            f"Cannot set the log level of {name} to {level} as it is not a supported log level. "
            f"Valid log levels are {', '.join(sorted(LEVELS))}"
        )


def _loggers() -> dict[str, logging.Logger]:
    made = {name: each for name, each in logging.root.manager.loggerDict.items() if isinstance(each, logging.Logger)}
    return {**made, ROOT: logging.root}


def _level(logger: logging.Logger) -> str:
    """Kafka's name of the effective level. A Python level between two of Kafka's levels maps to the quieter one."""
    level = logger.getEffectiveLevel()
    return next(name for name, bound in reversed(LEVELS.items()) if level <= bound or name == "FATAL")
