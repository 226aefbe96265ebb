"""All advice in the product's messages, found in the source.

An error text that says "delete it and start again" is code that a person runs, so it needs a test. This module finds such
texts in the whole product, and `table.py` names the tests that follow each of them.

Included: a text in the product's source, constant or with placeholders, that tells its reader to do something. Its grammar
decides, not its place: some clause begins with one of `IMPERATIVES`. A clause begins at the start of the text, after a full
stop, semicolon, colon, comma, dash or opening bracket, and after "or", "and", "then", "else" or "please".

Excluded, because they are no messages: docstrings, descriptions of command-line options, configs, metrics and events (each has
its page), and code that protoc writes.

Limit: advice in other words ("it has the form ..."), or assembled from single words at run time, is not found.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("service", "storage_tiers", "kafka_gateway", "grpc_api", "spark", "lambdas")

# Replaces each placeholder of an f-string.
HOLE = "…"

IMPERATIVES = (
    "abort|add|adjust|allow|apply|ask|assign|attach|begin|bring|build|call|change|check|choose|claim|clear|close|compare"
    "|complete|configure|connect|consume|contact|convert|copy|correct|create|decrease|define|delete|detach|disable|discard"
    "|do|downgrade|drop|edit|empty|enable|encode|ensure|erase|exclude|filter|find|fix|flush|free|give|grant|increase"
    "|install|keep|kill|leave|let|limit|list|load|look|lower|make|mark|mount|move|name|never|open|pass|pick|pip"
    "|plan|point|provide|put|quit|raise|read|reboot|rebuild|recover|reduce|refresh|remove|rename|repair|replace|report|reset"
    "|restart|restore|retry|revert|roll|rotate|run|save|say|scale|seal|see|send|set|share|shorten|skip|sort|specify|split"
    "|start|stop|supply|swap|switch|sync|take|tell|truncate|try|turn|unmount|unset|update|upgrade|upload|use|wait|watch"
    "|wipe|write"
)
_ADVICE = re.compile(rf"(?:^|[.;:,(—–-] |\(|\b(?:or|and|then|else|please) )(?:{IMPERATIVES})\b(?!-)", re.IGNORECASE)

# Keyword arguments and files whose texts describe things and are not messages.
_DESCRIBING_KEYWORDS = {"help", "epilog", "doc", "description", "metavar", "short_help", "rich_help_panel"}
_DESCRIBING_FILES = re.compile(
    r"_pb2(_grpc)?\.py$|^service/observability/|^service/configs/(generate_docs|differences|\w+_keys)\.py$"
)


@dataclass(frozen=True)
class Message:
    """A text in the source: `text` with `…` for each placeholder, its file and line, and in `call` the function that it is
    passed to ("" if none)."""

    path: str
    line: int
    text: str
    call: str


@cache
def all_messages() -> tuple[Message, ...]:
    """Every text of the product that could be a message: at least two words."""
    return tuple(message for path in _sources() for message in _of_file(path))


def advice() -> tuple[Message, ...]:
    """The messages that tell their reader to do something."""
    return tuple(message for message in all_messages() if gives_advice(message.text))


def gives_advice(text: str) -> bool:
    return _ADVICE.search(text) is not None


def _sources() -> Iterator[Path]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if not _DESCRIBING_FILES.search(path.relative_to(ROOT).as_posix()):
                yield path


def _of_file(path: Path) -> Iterator[Message]:
    name = path.relative_to(ROOT).as_posix()
    for line, text, call in _texts(ast.parse(path.read_text(encoding="utf-8")), ""):
        if len(text.split()) > 1:
            yield Message(name, line, text, call)


def _texts(node: ast.AST, call: str) -> Iterator[tuple[int, str, str]]:
    if isinstance(node, ast.expr) and (text := _text(node)) is not None:
        yield node.lineno, text, call
    if isinstance(node, ast.Call):
        called = node.func
        call = called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""
    for child in _children(node):
        yield from _texts(child, call)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):  # a docstring
        return
    if isinstance(node, ast.keyword) and node.arg in _DESCRIBING_KEYWORDS:
        return
    if isinstance(node, ast.Constant):
        return
    if (
        isinstance(node, ast.JoinedStr | ast.BinOp) and _text(node) is not None
    ):  # but texts may stand in its placeholders
        for part in ast.walk(node):
            if isinstance(part, ast.FormattedValue):
                yield part.value
        return
    yield from ast.iter_child_nodes(node)


def _text(node: ast.expr) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(str(part.value) if isinstance(part, ast.Constant) else HOLE for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            texts = _text(left), _text(right)
            return None if texts == (None, None) else "".join(HOLE if text is None else text for text in texts)
    return None
