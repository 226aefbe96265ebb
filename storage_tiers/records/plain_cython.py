"""A stand-in for `cython` when the kernels run uncompiled without Cython installed: names that do nothing.

Cython is needed to build, never to run. Its types appear only in annotations, which are not evaluated.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
Kind = TypeVar("Kind", bound=type)

compiled = False


def cfunc(function: Function) -> Function:
    return function


def cclass(kind: Kind) -> Kind:
    return kind


def inline(function: Function) -> Function:
    return function


def __getattr__(name: str) -> None:
    """Any of C's types, as an argument of `declare`."""


def declare(kind: None, value: int) -> int:
    return value


def exceptval(*, check: bool) -> Callable[[Function], Function]:
    return lambda function: function


class _NoGil:
    """A decorator and a context manager, as in Cython."""

    def __call__(self, function: Function) -> Function:
        return function

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


nogil = _NoGil()
