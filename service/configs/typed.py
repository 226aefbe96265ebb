"""Broker and topic configs as typed attributes, so that mypy finds a typo in a key or a wrong type.

`values.py` has an attribute for each honoured key. `python -m service.configs.typed` generates it from the registry, and a test
fails if it is stale. Keys that are accepted without effect, refused or only shown are absent, because no code may act on them.

Invariant: an attribute has the type `<type> | None` if and only if its key has no default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Generic, TypeVar, cast

from grpc_api.contract.topics import ConfigKind
from service.configs.keys import ConfigEffect, ConfigKey
from service.configs.types import Value

T = TypeVar("T")

MODULE = Path(__file__).with_name("values.py")

_TYPES = {
    ConfigKind.BOOLEAN: "bool",
    ConfigKind.SHORT: "int",
    ConfigKind.INT: "int",
    ConfigKind.LONG: "int",
    ConfigKind.DOUBLE: "float",
    ConfigKind.LIST: "tuple[str, ...]",
}

_HEAD = '''\
"""The configs that tidelog honours, as attributes. Made by `python -m service.configs.typed`: change the registry instead."""

from __future__ import annotations

from service.configs.typed import Typed, Values
'''


class Values:
    """The configs of one resource, looked up at each access. The caller chooses the image that `value` reads."""

    __slots__ = ("value",)

    def __init__(self, value: Callable[[str], Value | None]) -> None:
        self.value = value


class Typed(Generic[T]):
    """An attribute of `Values`: the value of one key."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, values: Values, owner: type) -> T:
        return cast(T, values.value(self._name))


def attribute(name: str) -> str:
    """The attribute name of a key, for example `log_dirs` for `log.dirs`."""
    return name.replace(".", "_").replace("-", "_")


def render(broker: Iterable[ConfigKey], topic: Iterable[ConfigKey]) -> str:
    return "\n".join((_HEAD, *_class("BrokerConfigs", "broker", broker), *_class("TopicConfigs", "topic", topic)))


def _class(name: str, of: str, keys: Iterable[ConfigKey]) -> Iterator[str]:
    yield f'\nclass {name}(Values):\n    """The configs of a {of}."""\n\n    __slots__ = ()\n'
    for key in keys:
        if key.effect is ConfigEffect.HONOURED and not key.given_by:
            kind = _TYPES.get(key.kind, "str") + (" | None" if key.default is None else "")
            yield f'    {attribute(key.name)} = Typed[{kind}]("{key.name}")'
    yield ""


if __name__ == "__main__":
    from service.configs.broker_keys import BROKER_KEYS
    from service.configs.topic_keys import TOPIC_KEYS

    MODULE.write_text(render(BROKER_KEYS, TOPIC_KEYS), encoding="utf-8")
