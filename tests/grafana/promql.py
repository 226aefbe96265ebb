"""The part of PromQL's grammar that shows which series and which labels an expression asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\s*\{([^}]*)\}")
_MATCHER = re.compile(r'\s*(\w+)\s*(?:=~|!~|!=|=)\s*"(?:[^"\\]|\\.)*"\s*(?:,|$)')
_GROUPING = re.compile(r"\b(?:by|without)\s*\(([^)]*)\)")
_NAME = re.compile(r"[a-zA-Z_:][\w:]*")
_FUNCTIONS = {"sum", "rate", "min", "max", "topk", "histogram_quantile", "time"}


@dataclass(frozen=True)
class Asked:
    """`labels` are those of the matchers; `grouped` those of every `by` of the expression."""

    name: str
    labels: frozenset[str]
    grouped: frozenset[str]


def asked(expression: str) -> Iterator[Asked]:
    """Raises ValueError for matchers that it does not understand."""
    grouped = frozenset(
        label.strip() for group in _GROUPING.findall(expression) for label in group.split(",") if label.strip()
    )
    for name, matchers in _SELECTOR.findall(expression):
        if _MATCHER.sub("", matchers).strip():
            raise ValueError(f"matchers {matchers!r} of {expression!r}")
        yield Asked(name, frozenset(_MATCHER.findall(matchers)), grouped)
    rest = re.sub(r"\[[^\]]*\]", "", _GROUPING.sub("", _SELECTOR.sub("", expression)))
    strange = set(_NAME.findall(rest)) - _FUNCTIONS
    if strange:
        raise ValueError(f"{strange} in {expression!r}: a series without matchers, or an unknown function")
