"""Counts the error codes that an answer bears, as Kafka's ErrorsPerSec does, except that no error is not counted.

The answers of APIs that kio writes are looked through as objects: their classes say which fields hold others. Produce and
Fetch, whose answers are bytes at once, count where they meet an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

#: Of a class: whether its entities bear an error code, and their fields that hold other entities. None: no entity.
Shape = tuple[bool, tuple[str, ...]] | None

_SHAPES: dict[type, Shape] = {}


def count_errors(answer: Mapping[str, Any], counts: Counter[int]) -> None:
    """`answer` are the fields of a response, as `Messages.respond` takes them."""
    for name, value in answer.items():
        if name == "error_code":
            _add(value, counts)
        elif type(value) is tuple or type(value) is list:
            _count_in(value, counts)


def _count_in(items: Iterable[Any], counts: Counter[int]) -> None:
    for item in items:
        kind = type(item)
        shape = _SHAPES[kind] if kind in _SHAPES else _shape(kind)
        if shape is None:
            return  # numbers or texts: so are the others
        has_code, nested = shape
        if has_code:
            _add(item.error_code, counts)
        for name in nested:
            _count_in(getattr(item, name) or (), counts)


def _add(code: Any, counts: Counter[int]) -> None:
    number = int(code)
    if number:
        counts[number] += 1


def _shape(kind: type) -> Shape:
    shape: Shape = None
    if is_dataclass(kind):
        types = {field.name: str(field.type) for field in fields(kind)}
        shape = "error_code" in types, tuple(name for name, text in types.items() if "tuple[" in text)
    _SHAPES[kind] = shape
    return shape
