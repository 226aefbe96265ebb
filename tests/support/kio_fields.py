"""The types in a field of a kio entity, from its annotation. Shared by the oracles that build requests from nested dicts."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any


def entities(annotation: Any) -> list[Any]:
    """The entity classes that the annotation names, at any depth."""
    found = [annotation] if dataclasses.is_dataclass(annotation) else []
    for inner in typing.get_args(annotation):
        found += entities(inner)
    return found


def is_array(annotation: Any) -> bool:
    """True for a tuple, nullable or not."""
    return any(typing.get_origin(a) is tuple for a in (annotation, *typing.get_args(annotation)))
