"""Every piece of advice matches exactly one row, every row matches some advice, and every test that a row names exists."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from grpc_api.contract import coordinator_errors
from storage_tiers import errors
from storage_tiers.errors import Advice
from tests.advice.messages import ROOT, Message, advice, gives_advice
from tests.advice.table import NO_ADVICE, RETRIED, ROWS

#: Clients retry KAFKA_STORAGE_ERROR, although here it means a failed disk.
RETRIED_BY_CLIENTS = {"StorageError"}
#: Not error classes: an HTTP answer with status 503, and stored texts that the tier's client turns into a TierUnavailable.
OTHERS = {"Response", "_lost", ""}
PATTERNS = (*(row.pattern for row in ROWS), RETRIED.pattern, *(pattern for pattern, _ in NO_ADVICE))


def rows_of(message: Message) -> list[str]:
    return [pattern for pattern in PATTERNS if re.search(pattern, message.text)]


def test_every_advice_has_one_row() -> None:
    """If this fails, add a row to `table.py`, with a test that does what the sentence says on real parts."""
    found = {f"{message.path}:{message.line}: {message.text}": rows_of(message) for message in advice()}
    assert {place: rows for place, rows in found.items() if len(rows) != 1} == {}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_row_has_an_advice(pattern: str) -> None:
    assert any(re.search(pattern, message.text) for message in advice())


@cache
def functions(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("test", sorted({test for row in (*ROWS, RETRIED) for test in row.tests}))
def test_every_test_of_a_row_is_there(test: str) -> None:
    path, _, name = test.partition("::")
    assert name.startswith("test_") and name in functions(path)


def test_errors_that_advise_a_retry_are_retriable() -> None:
    wrong = []
    for message in advice():
        if not re.search(RETRIED.pattern, message.text) or message.call in RETRIED_BY_CLIENTS | OTHERS:
            continue
        kind = getattr(errors, message.call, None) or getattr(coordinator_errors, message.call, None)
        if kind is None or kind.advice not in (Advice.RETRY, Advice.REDIRECT):
            wrong.append((message.path, message.line, message.call))
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "advises"),
    [
        ("delete it and start again", True),
        ("the disk is full; free space", True),
        ("… is damaged. Keep the file", True),
        ("stop here and correct that", True),
        ("… (or use -1 for it)", True),
        ("start one with `tidelog serve`, or give another", True),
        ("the disk is full", False),
        ("nothing was deleted", False),
        ("its copy is there", False),
    ],
)
def test_advice_is_recognised_by_its_words(text: str, advises: bool) -> None:
    assert gives_advice(text) == advises
