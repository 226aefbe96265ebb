"""Writes the reference page of configs, docs/configs.md, from the registry: `python -m service.configs.generate_docs`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from service.configs.broker_keys import BROKER_KEYS
from service.configs.differences import DIFFERENCES
from service.configs.keys import ConfigEffect, ConfigKey, ConfigScope
from service.configs.removed import REMOVED_FROM_BROKERS, REMOVED_FROM_TOPICS, removed
from service.configs.topic_keys import TOPIC_KEYS
from service.configs.types import Value, format_value

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configs.md"

_HEAD = """\
# Configs

Every config of topics and brokers: all of Apache Kafka 4.2.1's, with its types, defaults and bounds, and tidelog's own
(`tidelog.…`). `make docs` generates this page from the registry; DescribeConfigs shows the same for a running node.

- *honoured*: it has Kafka's effect.
- *accepted*: it can be set and is shown, without effect, for the reason given.
- *refused*: it cannot be set, since relying on it would mislead.
- *shown*: it shows one of the node's own settings (`tidelog serve --help`), under Kafka's name.

## Setting them

- A topic: `tidelog topic create T --config KEY=VALUE`, then `tidelog topic alter T --config KEY=VALUE --delete-config KEY`.
- A broker at its start: `tidelog serve --set KEY=VALUE`, `TIDELOG_BROKER__KEY` (dots become underscores), or `[broker]` of
  the file that `--config` names.
- A broker while it runs: `tidelog configs alter --set KEY=VALUE --delete KEY`, for all brokers, or with `--broker ID` for one.

Any Kafka client or tool does the same (`kafka-configs.sh`, CreateTopics, AlterConfigs, IncrementalAlterConfigs). A change
is atomic: all of it is checked, then applied, and takes effect with the next request. An illegal value fails with
INVALID_CONFIG (for a broker INVALID_REQUEST, as in Kafka) and the reason. The error for an unknown key names similar keys.

*read-only* keys can be set only at the start, *per-broker* keys for a single broker, *cluster-wide* keys for one or all.
The first value in this order applies: the topic's own; the broker's, set at run time; that of all brokers, set at run time;
the broker's, set at its start; the default. `tidelog configs describe KEY`, with `--topic T` for a topic's, shows which
one applies, and what the key means.
"""


def render() -> str:
    parts = [
        _HEAD,
        "## Where defaults differ from Kafka's\n\n"
        "These are the defaults of nodes with an object store. Without one, every default is Kafka's.\n",
        _table(("key", "Kafka", "tidelog", "why"), _differences()),
        f"## Topics\n\n{_counted(TOPIC_KEYS)}\n",
        _table(("key", "type", "default", "of a broker", "what it is", "here"), map(_topic_row, _shown(TOPIC_KEYS))),
        f"## Brokers\n\n{_counted(BROKER_KEYS)}\n",
        _table(("key", "type", "default", "dynamic", "what it is", "here"), map(_broker_row, _shown(BROKER_KEYS))),
        "## Removed\n\n"
        "Configs of earlier Kafka versions that Kafka 4 removed. Setting one fails, and the error names its replacement.\n",
        _table(("key", "of", "instead"), _removed()),
    ]
    return "\n".join(parts)


def _shown(keys: Iterable[ConfigKey]) -> list[ConfigKey]:
    return [key for key in keys if not key.hidden]


def _counted(keys: Iterable[ConfigKey]) -> str:
    shown = _shown(keys)
    count = {effect: sum(key.effect is effect for key in shown) for effect in ConfigEffect}
    return ", ".join(f"{number} {effect.value}" for effect, number in count.items() if number) + "."


def _differences() -> Iterator[tuple[str, ...]]:
    for row in DIFFERENCES:
        yield _code(row.key), _value(row.kafka), _value(row.tidelog), row.reason


def _topic_row(key: ConfigKey) -> tuple[str, ...]:
    synonyms = ", ".join(_code(synonym.name) for synonym in key.synonyms)
    return _code(key.name), key.kind.name.lower(), _value(key.default), synonyms, key.documentation, _here(key)


def _broker_row(key: ConfigKey) -> tuple[str, ...]:
    kind, dynamic = key.kind.name.lower(), key.dynamic.value
    return _code(key.name), kind, _value(key.default), dynamic, key.documentation, _here(key)


def _here(key: ConfigKey) -> str:
    if key.given_by:
        return f"shown: `{key.given_by.replace(' and ', '`, `')}`"
    return f"{key.effect.value}: {key.reason}" if key.reason else key.effect.value


def _removed() -> Iterator[tuple[str, ...]]:
    for names, scope in ((REMOVED_FROM_TOPICS, ConfigScope.TOPIC), (REMOVED_FROM_BROKERS, ConfigScope.BROKER)):
        for name in names:
            yield _code(name), scope.value, names[name]
    yield _code("zookeeper.…"), ConfigScope.BROKER.value, str(removed(ConfigScope.BROKER.value, "zookeeper.connect"))


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines) + "\n"


def _code(name: str) -> str:
    return f"`{name}`"


def _value(value: Value | None) -> str:
    text = format_value(value)
    return "" if text is None else '`""`' if text == "" else _code(text)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
