"""Converts frozen values to JSON and back by their type hints, for frames between broker and tier process.

Supports dataclasses, NamedTuples, Enums of str, TopicId, bytes (base64), str, int, float, bool, None, unions with None,
`tuple[X, ...]`, mappings from str, and a manifest in its stored form. Any other type raises TypeError, so a message cannot
silently lose a field. Received values are checked against the hints: another shape is a `ProtocolError`, never a half-built
message.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import types
import typing
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from storage_tiers.cold.manifest import json as manifest_json
from storage_tiers.cold.manifest.model import Manifest
from storage_tiers.errors import LogError
from storage_tiers.types import TopicId

T = TypeVar("T")


class ProtocolError(Exception):
    """The other side sent something that no version of this program sends: end the connection."""


def to_json(value: Any) -> Any:
    """Converts a value to a tree of dicts, lists and plain values."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, TopicId):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Manifest):
        return manifest_json.encode(value).decode()
    if dataclasses.is_dataclass(value):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    raise TypeError(f"{type(value).__name__} cannot cross to the tier process")


def from_json(kind: type[T], value: Any) -> T:
    """The value of type `kind` that `to_json` converted. ProtocolError if `value` has another shape."""
    return typing.cast(T, _build(kind, value))


def _build(kind: Any, value: Any) -> Any:
    origin = typing.get_origin(kind)
    if origin is types.UnionType or origin is typing.Union:
        return _build_optional(kind, value)
    if origin is tuple:
        return tuple(_build(typing.get_args(kind)[0], item) for item in _expect(list, value))
    if origin is dict or origin is Mapping:
        return {key: _build(typing.get_args(kind)[1], item) for key, item in _expect(dict, value).items()}
    if kind is Manifest:
        return _build_manifest(_expect(str, value))
    if dataclasses.is_dataclass(kind):
        return _build_dataclass(kind, _expect(dict, value))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _build_enum(kind, value)
    if hasattr(kind, "_fields"):
        hints = _hints(kind)
        items = _expect(list, value)
        if len(items) != len(hints):
            raise ProtocolError(f"{kind.__name__} has {len(hints)} items, not {len(items)}")
        return kind(*(_build(hint, item) for hint, item in zip(hints.values(), items, strict=True)))
    return _build_plain(kind, value)


def _build_optional(kind: Any, value: Any) -> Any:
    others = [argument for argument in typing.get_args(kind) if argument is not type(None)]
    if len(others) != 1:
        raise TypeError(f"{kind} cannot cross to the tier process: only unions with None")
    return None if value is None else _build(others[0], value)


def _build_manifest(text: str) -> Manifest:
    try:
        return manifest_json.decode(text.encode())
    except LogError as error:
        raise ProtocolError(f"not a manifest: {error}") from error


def _build_dataclass(kind: Any, value: dict[str, Any]) -> Any:
    hints = _hints(kind)
    if value.keys() != hints.keys():
        raise ProtocolError(f"{kind.__name__} has the fields {sorted(hints)}, not {sorted(value)}")
    return kind(**{name: _build(hint, value[name]) for name, hint in hints.items()})


def _build_enum(kind: type[Enum], value: Any) -> Enum:
    try:
        return kind(value)
    except ValueError as error:
        raise ProtocolError(f"{value!r} is no {kind.__name__}") from error


def _build_plain(kind: Any, value: Any) -> Any:
    if kind is TopicId or kind is bytes:
        text = _expect(str, value)
        try:
            return TopicId.parse(text) if kind is TopicId else base64.b64decode(text, validate=True)
        except (ValueError, binascii.Error) as error:
            raise ProtocolError(f"not a {kind.__name__}: {text[:64]!r}") from error
    if kind is float:
        return float(_expect((int, float), value))
    if kind is int and isinstance(value, bool):
        raise ProtocolError("expected int, got bool")
    if kind in (int, str, bool, types.NoneType):
        return _expect(kind, value)
    raise TypeError(f"{kind} cannot cross to the tier process")


def _expect(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind):
        raise ProtocolError(f"expected {kind}, got {type(value).__name__}")
    return value


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    if dataclasses.is_dataclass(kind):
        return {f.name: hints[f.name] for f in dataclasses.fields(kind)}
    return {name: hints[name] for name in kind._fields}
