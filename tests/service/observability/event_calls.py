"""Every log event in the source: its name, levels and fields."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("grpc_api", "kafka_gateway", "service", "storage_tiers")
LEVELS = {"debug": "DEBUG", "info": "INFO", "provoked": "INFO", "warning": "WARN", "error": "ERROR"}
#: Variables that hold an event function; the assignments before the call show which function.
CHOSEN = ("say", "say_over")


@dataclass(frozen=True)
class EventCall:
    name: str
    levels: frozenset[str]
    fields: frozenset[str]
    where: str


def event_calls() -> Iterator[EventCall]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            source = path.read_text()
            if ("events" in source or ".note(" in source) and path.name != "events.py":
                yield from _calls(ast.parse(source), str(path.relative_to(ROOT)))


def _calls(tree: ast.Module, where: str) -> Iterator[EventCall]:
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        chosen = {
            target.id: _levels_in(node.value)
            for node in ast.walk(function)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name) and target.id in CHOSEN
        }
        for node in ast.walk(function):
            if not isinstance(node, ast.Call):
                continue
            if (noted := _noted(node)) is not None:
                yield EventCall(noted, frozenset({"INFO"}), _fields(node), f"{where}:{node.lineno}")
            if len(node.args) != 2:
                continue
            known = chosen.get(node.func.id, set()) if isinstance(node.func, ast.Name) else set()
            levels = known | {_level(node.func)}
            name = node.args[1]
            if any(levels) and isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield EventCall(name.value, frozenset(filter(None, levels)), _fields(node), f"{where}:{node.lineno}")


def _noted(call: ast.Call) -> str | None:
    """The event of a pure module's note (`service.coordination.outcome`), which its shell logs."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "note" and len(call.args) == 1:
        name = call.args[0]
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            return name.value
    return None


def _level(called: ast.expr) -> str:
    """The level if `called` is `events.info` or one like it, else ""."""
    if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "events":
        return LEVELS.get(called.attr, "")
    return ""


def _levels_in(value: ast.expr) -> set[str]:
    return {level for node in ast.walk(value) if isinstance(node, ast.expr) and (level := _level(node))}


def _fields(call: ast.Call) -> frozenset[str]:
    names = {keyword.arg for keyword in call.keywords if keyword.arg is not None} - {"by"}
    # A partition is logged as topic and number; the event form adds a defect's traceback itself.
    if "partition" in names:
        names.add("topic")
    return frozenset(names - {"defect"})
