"""Reads and writes the fields of coordinator records, in the encodings of Kafka's message definitions.

A key begins with the type of the record, a value with its version, as an int16. Versions marked flexible use compact lengths
(an unsigned varint of length + 1, 0 for null) and end each struct with tagged fields (KIP-482). `kio` has no schemas for these
messages.

Invariants: for bytes that do not encode the expected fields, a reader raises CorruptRecord and nothing else. It reads nothing
beyond the bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Mapping
from typing import TypeVar

from storage_tiers.errors import CorruptRecord

Item = TypeVar("Item")

_INT8, _INT16, _INT32, _INT64 = (struct.Struct(f">{code}") for code in "bhiq")
#: Bytes of the longest unsigned varint of 32 bits.
_MAX_VARINT_BYTES = 5
#: Longest string in a version that is not flexible, where its length is an int16.
MAX_STRING_BYTES = (1 << 15) - 1


def too_long(size: int) -> ValueError:
    return ValueError(f"a string of {size} bytes does not fit; at most {MAX_STRING_BYTES} do")


class FieldReader:
    """Reads one key or value from its first byte on. `what` names it in errors. Strings are UTF-8."""

    __slots__ = ("_at", "_data", "_what", "flexible")

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._at = 0
        self._what = what
        #: Whether lengths are compact and structs end with tagged fields. Set once the version is known.
        self.flexible = False

    def int8(self) -> int:
        return self._number(_INT8)

    def int16(self) -> int:
        return self._number(_INT16)

    def int32(self) -> int:
        return self._number(_INT32)

    def int64(self) -> int:
        return self._number(_INT64)

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise self._corrupt("a string is null")
        return text

    def nullable_string(self) -> str | None:
        size = self._compact_length() if self.flexible else self.int16()
        if size == -1:
            return None
        try:
            return self._take(size).decode()
        except UnicodeDecodeError:
            raise self._corrupt("a string has bytes that are not UTF-8") from None

    def sized_bytes(self) -> bytes:
        size = self._compact_length() if self.flexible else self.int32()
        return self._take(size)

    def array(self, item: Callable[[], Item]) -> tuple[Item, ...]:
        found = self.nullable_array(item)
        if found is None:
            raise self._corrupt("an array is null")
        return found

    def nullable_array(self, item: Callable[[], Item]) -> tuple[Item, ...] | None:
        count = self._count()
        return None if count is None else tuple([item() for _ in range(count)])

    def array_in_steps(self, item: Callable[[], Item]) -> Generator[None, None, tuple[Item, ...]]:
        """Does the same as `array` in steps, one for each item."""
        found = yield from self.nullable_array_in_steps(item)
        if found is None:
            raise self._corrupt("an array is null")
        return found

    def nullable_array_in_steps(self, item: Callable[[], Item]) -> Generator[None, None, tuple[Item, ...] | None]:
        """Does the same as `nullable_array` in steps, one for each item."""
        count = self._count()
        if count is None:
            return None
        found = []
        for _ in range(count):
            found.append(item())
            yield
        return tuple(found)

    def int32_array(self) -> tuple[int, ...]:
        count = self._count()
        if count is None:
            raise self._corrupt("an array is null")
        return struct.unpack(f">{count}i", self._take(count * _INT32.size))

    def _count(self) -> int | None:
        count = self._compact_length() if self.flexible else self.int32()
        if count == -1:
            return None
        # Every item has at least one byte, so a wrong count cannot make the loop long.
        if not 0 <= count <= len(self._data) - self._at:
            raise self._corrupt(f"an array has {count} items")
        return count

    def tagged(self) -> Mapping[int, bytes]:
        """The tagged fields at the end of a struct, by tag; empty in versions without them."""
        if not self.flexible:
            return {}
        fields = {}
        for _ in range(self._unsigned_varint()):
            tag = self._unsigned_varint()
            fields[tag] = self._take(self._unsigned_varint())
        return fields

    def end(self) -> None:
        """Raises CorruptRecord if bytes follow."""
        if self._at != len(self._data):
            raise self._corrupt(f"{len(self._data) - self._at} bytes follow its fields")

    def unknown(self, part: str, number: int) -> CorruptRecord:
        """The error for a version or a type that this release does not read."""
        return self._corrupt(f"its {part} is {number}, which this release does not read")

    def _number(self, kind: struct.Struct) -> int:
        number: int = kind.unpack(self._take(kind.size))[0]
        return number

    def _compact_length(self) -> int:
        return self._unsigned_varint() - 1

    def _unsigned_varint(self) -> int:
        number = 0
        for index in range(_MAX_VARINT_BYTES):
            byte = self._take(1)[0]
            number |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                if number >> 32:
                    break
                return number
        raise self._corrupt("a varint does not fit 32 bits")

    def _take(self, size: int) -> bytes:
        start = self._at
        if not 0 <= size <= len(self._data) - start:
            raise self._corrupt(f"a field of {size} bytes at {start} does not fit")
        self._at = start + size
        return self._data[start : self._at]

    def _corrupt(self, why: str) -> CorruptRecord:
        return CorruptRecord(f"{self._what} of {len(self._data)} bytes: {why}")


class FieldWriter:
    """Writes one key or value; `data` has the bytes written so far. Raises ValueError for a field that its encoding cannot
    hold."""

    __slots__ = ("data", "flexible")

    def __init__(self, number: int, *, flexible: bool = False) -> None:
        """`number` is the key's type or the value's version."""
        self.data = bytearray(_INT16.pack(number))
        self.flexible = flexible

    def int8(self, number: int) -> None:
        self.data += _INT8.pack(number)

    def int16(self, number: int) -> None:
        self.data += _INT16.pack(number)

    def int32(self, number: int) -> None:
        self.data += _INT32.pack(number)

    def int64(self, number: int) -> None:
        self.data += _INT64.pack(number)

    def string(self, text: str | None) -> None:
        content = None if text is None else text.encode()
        if self.flexible:
            self._compact_length(content)
        elif content is None:
            self.data += b"\xff\xff"
        elif len(content) > MAX_STRING_BYTES:
            raise too_long(len(content))
        else:
            self.data += _INT16.pack(len(content))
        if content is not None:
            self.data += content

    def sized_bytes(self, content: bytes) -> None:
        if self.flexible:
            self._compact_length(content)
        else:
            self.data += _INT32.pack(len(content))
        self.data += content

    def count(self, items: int | None) -> None:
        """Writes the length of an array, or null for None. Its items follow."""
        if self.flexible:
            self._unsigned_varint(0 if items is None else items + 1)
        else:
            self.data += _INT32.pack(-1 if items is None else items)

    def tagged(self, fields: Mapping[int, bytes]) -> None:
        """Writes the tagged fields that end a struct, by tag. Writes nothing in versions without them."""
        if not self.flexible:
            return
        self._unsigned_varint(len(fields))
        for tag, content in sorted(fields.items()):
            self._unsigned_varint(tag)
            self._unsigned_varint(len(content))
            self.data += content

    def _compact_length(self, content: bytes | None) -> None:
        self._unsigned_varint(0 if content is None else len(content) + 1)

    def _unsigned_varint(self, number: int) -> None:
        while number > 0x7F:
            self.data.append(number & 0x7F | 0x80)
            number >>= 7
        self.data.append(number)
