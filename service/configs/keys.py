"""The registry of config keys of topics and brokers. Each key has one row; a key without a row does not exist.

A row has Kafka's definition (kind, default, rule, update mode) and the key's effect here. An honoured key acts as in Kafka. An
accepted key is stored and shown without effect, for the reason given. A refused key would mislead if it were accepted. Defaults
are Kafka 4.2.1's except those in `differences.py`.

Pure data; resolution is in `resolve.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from grpc_api.contract.topics import ConfigKind
from service.configs.removed import removed
from service.configs.types import Validator, Value, format_value, nearest, parse
from storage_tiers.errors import InvalidConfig

#: Shown in place of a secret, as in Kafka.
HIDDEN = "[hidden]"


class ConfigScope(Enum):
    """The kind of resource that has the key."""

    TOPIC = "topic"
    BROKER = "broker"


class Dynamic(Enum):
    """Kafka's update modes, which say how a broker key may change at run time. Topic keys may always change."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class ConfigEffect(Enum):
    """Whether a key acts as in Kafka, is accepted without effect, or is refused."""

    HONOURED = "honoured"
    ACCEPTED = "accepted"
    REFUSED = "refused"


class Synonym(NamedTuple):
    """A broker key that gives a key its value, possibly in another unit: value = synonym * factor."""

    name: str
    factor: int = 1


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One row. `synonyms` are broker keys in order of precedence (a broker key's own name first). `reason` says why a key is
    accepted without effect, or refused. `given_by` names the node's setting that this key shows. `hidden` keys are for tests.
    Hidden keys and keys with `only_when_set` are described only where they are set."""

    name: str
    kind: ConfigKind
    default: Value | None
    documentation: str
    scope: ConfigScope = ConfigScope.BROKER
    validator: Validator | None = None
    synonyms: tuple[Synonym, ...] = ()
    dynamic: Dynamic = Dynamic.READ_ONLY
    effect: ConfigEffect = ConfigEffect.HONOURED
    reason: str = ""
    given_by: str = ""
    hidden: bool = False
    only_when_set: bool = False

    @property
    def sensitive(self) -> bool:
        return self.kind is ConfigKind.PASSWORD

    def parse(self, text: str) -> Value:
        """Parses a value. Raises InvalidConfig in Kafka's words if the text is not a legal value, or if the key is refused."""
        value = parse(self.name, self.kind, text)
        if self.validator is not None:
            self.validator(self.name, value)
        if self.effect is ConfigEffect.REFUSED and value != self.default:
            raise InvalidConfig(f"Configuration {self.name} cannot be set to {self.shown(value)}: {self.reason}")
        return value

    def shown(self, value: Value | None) -> str | None:
        """The value for display; secrets are hidden."""
        return HIDDEN if self.sensitive and value is not None else format_value(value)


def broker_key(
    name: str,
    kind: ConfigKind,
    default: Value | None,
    documentation: str,
    validator: Validator | None = None,
    *,
    dynamic: Dynamic = Dynamic.READ_ONLY,
    given_by: str = "",
) -> ConfigKey:
    return ConfigKey(
        name,
        kind,
        default,
        documentation,
        validator=validator,
        synonyms=(Synonym(name),),
        dynamic=dynamic,
        given_by=given_by,
    )


class Registry:
    """The keys of one scope by name."""

    def __init__(self, scope: ConfigScope, rows: Iterable[ConfigKey]) -> None:
        self.scope = scope
        self._rows: Mapping[str, ConfigKey] = {row.name: row for row in sorted(rows, key=lambda row: row.name)}

    def __iter__(self) -> Iterator[ConfigKey]:
        return iter(self._rows.values())

    def find(self, name: str) -> ConfigKey | None:
        return self._rows.get(name)

    def get(self, name: str) -> ConfigKey:
        """The key with that name. For an unknown key, raises InvalidConfig in Kafka's words, with the nearest known names."""
        row = self._rows.get(name)
        if row is not None:
            return row
        message = f"Unknown {self.scope.value} config name: {name}"
        instead = removed(self.scope.value, name)
        if instead is not None:
            raise InvalidConfig(f"{message} (removed in Kafka 4: {instead})")
        meant = nearest(name, [row.name for row in self._rows.values() if not row.hidden])
        raise InvalidConfig(f"{message} (did you mean {' or '.join(meant)}?)" if meant else message)
