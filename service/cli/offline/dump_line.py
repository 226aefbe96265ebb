"""One line of a dump: named values and damage, printed in the format of Kafka's tool or as JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from service.cli.output import json_bytes

_UNDERSCORE = re.compile(r"_([a-z])")
#: Names that Kafka's DumpLogSegments prints without camel case.
_KAFKA_NAMES = {"codec": "compresscodec", "is_valid": "isvalid", "value": "payload"}


@dataclass(frozen=True, slots=True)
class Line:
    """`fields` are in the order of printing. Values of type bytes are the content of a key or value. `damage` describes the
    damage, if any. `prefix` is printed before the text."""

    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    damage: str = ""
    prefix: str = ""

    def text(self) -> str:
        words = [f"{_camel(name)}: {_text(value)}" for name, value in self.fields.items()]
        if self.damage:
            words.append(f"DAMAGED: {self.damage}")
        return self.prefix + " ".join(words)

    def json(self, path: str) -> Mapping[str, Any]:
        line: dict[str, Any] = {"file": path, "kind": self.kind}
        for name, value in self.fields.items():
            line.update(json_bytes(name, value) if isinstance(value, bytes) else {name: value})
        if self.damage:
            line["damage"] = self.damage
        return line


def damage(what: str, **fields: Any) -> Line:
    return Line("damage", fields, what)


def note(text: str) -> Line:
    """A note for the reader; not damage."""
    return Line("note", {"note": text})


def _camel(name: str) -> str:
    return _KAFKA_NAMES.get(name) or _UNDERSCORE.sub(lambda found: found[1].upper(), name)


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_text, value))}]"
    return str(value)
