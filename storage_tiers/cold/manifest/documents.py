"""The JSON documents of a bucket: easy to read, with one list item per line. Reading is strict, and errors name the field.

Every document names its `format` and the oldest reader that understands it (`least_reader`). It ends with a checksum of all
bytes before that last field, which also detects a flipped digit. A missing or mistyped field, or a checksum that does not
match, raises TierCorrupt. Unknown fields are ignored. A document for newer readers only raises StoreRefused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from storage_tiers.errors import StoreRefused, TierCorrupt
from storage_tiers.records.checksum import crc32c

#: The format that this version writes, and the newest that it reads.
FORMAT = 2
#: The oldest reader that understands what this version writes.
LEAST_READER = 2
#: The name of the last field: the CRC-32C of all bytes before the comma in front of it.
CHECKSUM = "checksum"
_SEAL = re.compile(rb',\n"checksum": (\d{1,10})\n}\n\Z')
_INT64 = 1 << 63
_json = json.JSONEncoder(ensure_ascii=False, separators=(", ", ": ")).encode


def document(fields: Mapping[str, object]) -> bytes:
    """`fields` as bytes, sealed: the checksum is added as the last field."""
    lines = ",\n".join(f"{_json(name)}: {_value(value)}" for name, value in fields.items() if name != CHECKSUM)
    body = ("{\n" + lines).encode()
    return body + f',\n"{CHECKSUM}": {crc32c(body)}\n}}\n'.encode()


def _value(value: object) -> str:
    if isinstance(value, list) and value:
        return "[\n  " + ",\n  ".join(map(_json, value)) + "\n]"
    return _json(value)


class Fields:
    """A JSON object whose fields are read by type. Raises TierCorrupt, which names the field that is missing or mistyped."""

    __slots__ = ("_fields", "_where", "intact")

    def __init__(self, fields: Mapping[str, Any], where: str, *, intact: bool = True) -> None:
        self._fields = fields
        self._where = where
        self.intact = intact

    @classmethod
    def parse(cls, data: bytes, where: str) -> Fields:
        try:
            fields = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise TierCorrupt(f"{where} is not JSON: {error}") from error
        if not isinstance(fields, dict):
            raise TierCorrupt(f"{where} is not a JSON object")
        return cls(fields, where, intact=_is_intact(data))

    def bad(self, fault: str) -> TierCorrupt:
        return TierCorrupt(f"{self._where}: {fault}")

    def has(self, name: str) -> bool:
        return self._fields.get(name) is not None

    def number(self, name: str) -> int:
        value = self._fields.get(name)
        if type(value) is not int or not -_INT64 <= value < _INT64:
            raise self.bad(f"{name!r} is {self._shown(name)}, not a 64-bit integer")
        return value

    def natural(self, name: str) -> int:
        value = self.number(name)
        if value < 0:
            raise self.bad(f"{name!r} is {value}, which is negative")
        return value

    def number_or_none(self, name: str) -> int | None:
        return self.number(name) if self.has(name) else None

    def text(self, name: str) -> str:
        value = self._fields.get(name)
        if not isinstance(value, str):
            raise self.bad(f"{name!r} is {self._shown(name)}, not a string")
        return value

    def texts(self, name: str) -> list[str]:
        values = self._list(name)
        if not all(isinstance(value, str) for value in values):
            raise self.bad(f"{name!r} holds an item that is not a string")
        return values

    def flag(self, name: str) -> bool:
        value = self._fields.get(name)
        if not isinstance(value, bool):
            raise self.bad(f"{name!r} is {self._shown(name)}, not true or false")
        return value

    def object(self, name: str) -> Fields:
        value = self._fields.get(name)
        if not isinstance(value, dict):
            raise self.bad(f"{name!r} is {self._shown(name)}, not an object")
        return Fields(value, f"{self._where}: {name}")

    def items(self) -> Sequence[tuple[str, Any]]:
        return tuple(self._fields.items())

    def objects(self, name: str) -> list[Fields]:
        found = []
        for index, value in enumerate(self._list(name)):
            if not isinstance(value, dict):
                raise self.bad(f"{name}[{index}] is not an object")
            found.append(Fields(value, f"{self._where}: {name}[{index}]"))
        return found

    def pairs(self, name: str, second: type) -> list[tuple[int, Any]]:
        pairs = []
        for pair in self._list(name):
            if not isinstance(pair, list) or len(pair) != 2 or type(pair[0]) is not int or type(pair[1]) is not second:
                raise self.bad(f"{name!r} holds {pair!r}, not [number, {second.__name__}]")
            pairs.append((pair[0], pair[1]))
        return pairs

    def number_pair(self, name: str) -> tuple[int, int]:
        first, second = self.numbers(name, 2)
        return first, second

    def numbers(self, name: str, count: int) -> list[int]:
        value = self._fields.get(name)
        if not isinstance(value, list) or len(value) != count or any(type(number) is not int for number in value):
            raise self.bad(f"{name!r} is {self._shown(name)}, not {count} numbers")
        return value

    def _list(self, name: str) -> list[Any]:
        value = self._fields.get(name)
        if not isinstance(value, list):
            raise self.bad(f"{name!r} is {self._shown(name)}, not a list")
        return value

    def _shown(self, name: str) -> str:
        return repr(self._fields[name])[:80] if name in self._fields else "missing"


def check_version(fields: Fields) -> int:
    """Returns the document's format. Raises StoreRefused if the document needs a newer reader, and TierCorrupt if its bytes
    have changed."""
    version, least = fields.number("format"), fields.number("least_reader")
    if version < 1 or not 1 <= least <= version:
        raise fields.bad(f"format {version} with least_reader {least} does not exist")
    if least > FORMAT:
        raise StoreRefused(
            f"{fields.bad(f'format {version} needs a reader of format {least}')}; this version of tidelog reads up to "
            f"{FORMAT}: upgrade it"
        )
    if not fields.intact:
        raise fields.bad("its checksum does not match its bytes; it was changed after it was written")
    return version


def _is_intact(data: bytes) -> bool:
    seal = _SEAL.search(data, max(0, len(data) - 32))
    return seal is not None and crc32c(memoryview(data)[: seal.start()]) == int(seal[1])
