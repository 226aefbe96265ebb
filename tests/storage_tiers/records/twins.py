"""A native kernel and the same source as plain Python, with and without Cython importable."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any


def source_of(kernel: ModuleType) -> str:
    path = Path(kernel.__file__ or "")
    return str(path.with_name(path.name.split(".")[0] + ".py"))


def twins_of(kernel: ModuleType) -> dict[str, ModuleType]:
    return {
        "built": kernel,
        "plain": _plain(kernel, cython=True),
        "plain without cython": _plain(kernel, cython=False),
    }


def _plain(kernel: ModuleType, *, cython: bool) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"plain_{kernel.__name__.split('.')[-1]}", source_of(kernel))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with _cython_hidden(not cython):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _cython_hidden(hidden: bool) -> Iterator[None]:
    modules: dict[str, Any] = sys.modules  # a None entry makes the import fail
    kept = modules.get("cython")
    if hidden:
        modules["cython"] = None
    try:
        yield
    finally:
        if hidden:
            del modules["cython"]
            if kept is not None:
                modules["cython"] = kept
