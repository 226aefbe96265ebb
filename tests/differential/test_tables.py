"""The tables agree with each other and with docs/compatibility.md."""

from __future__ import annotations

from kafka_gateway.registry import APIS
from tests.differential import generate_docs
from tests.differential.judge import all_sessions
from tests.differential.rules import ON_PURPOSE
from tests.differential.unsupported_apis import UNSUPPORTED_APIS


def test_unsupported_apis_are_not_served() -> None:
    keys = [api.key for api in UNSUPPORTED_APIS]
    assert keys == sorted(set(keys))
    assert set(keys).isdisjoint(api.key for api in APIS)


def test_every_difference_on_purpose_has_a_reason() -> None:
    assert all(len(row.reason) > 15 for row in ON_PURPOSE)
    assert len(set(ON_PURPOSE)) == len(ON_PURPOSE)


def test_no_two_sessions_have_one_name() -> None:
    names = [str(session) for session in all_sessions()]
    assert len(set(names)) == len(names)


def test_the_page_agrees_with_the_tables() -> None:
    assert generate_docs.PATH.read_text() == generate_docs.page(), "run `python -m tests.differential.generate_docs`"
