"""The patterns of transactional ids that are matched; no other pattern reaches Python's regular expressions."""

from __future__ import annotations

import pytest

from grpc_api.contract.coordinator_errors import InvalidRegularExpression
from service.coordination.transactions.patterns import MAX_LENGTH, MAX_STEPS, compiled


@pytest.mark.parametrize(
    ("pattern", "matched", "other"),
    [
        ("", "", "a"),
        ("pay-1", "pay-1", "pay-12"),
        ("pay-.*", "pay-7", "xpay-7"),
        (".*", "anything", "two\nlines"),
        (".*pay.*", "my-payments", "my-pa"),
        ("[a-z]+-[0-9]{3}", "app-123", "app-12"),
        ("(pay|bill)-.*", "bill-1", "kill-1"),
        ("^pay-?1?$", "pay1", "pay-2"),
        (r"a\.b.*", "a.b", "axb"),
        (r"\d+", "42", "4x"),
    ],
)
def test_supported_patterns_match_as_they_do_in_re2(pattern: str, matched: str, other: str) -> None:
    assert compiled(pattern).matches(matched)
    assert not compiled(pattern).matches(other)


@pytest.mark.parametrize("pattern", ["(", "*", "[a", "(?P<x", "a{2,1}"])
def test_malformed_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(InvalidRegularExpression, match="cannot be read"):
        compiled(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+",
        "(a*)*b",
        "(a|a)*b",
        ".*a.*b",
        ".*a.*b.*",
        "a?" * 5 + "a" * 5,
        "(ab|ba)" * 7,
        r"(a)\1",
        "(?=a)a",
        "(ab)+",
        "(?:a{1,9}){1,9}",
        "a{0,900}a{0,900}b",
        "(x)(?(1)a|b)",
    ],
)
def test_patterns_that_may_take_exponential_time_are_recognised(pattern: str) -> None:
    with pytest.raises(InvalidRegularExpression, match="too many ways"):
        compiled(pattern)


def test_a_pattern_is_no_longer_than_its_bound() -> None:
    assert compiled("a" * MAX_LENGTH)
    with pytest.raises(InvalidRegularExpression, match="at most"):
        compiled("a" * (MAX_LENGTH + 1))


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("a*a*", "a" * 32_766 + "b"),
        (".*a.*", "a" * 32_766 + "\n"),
        ("a*" + "a" * 900 + "b", "a" * 32_766),
        ("a*a{900}b", "a" * 32_766),
        ("a*a?a?a?a?(b|c|d|e)", "a" * 32_766),
    ],
)
def test_long_names_that_may_take_long_are_not_tried(pattern: str, name: str) -> None:
    found = compiled(pattern)
    assert found.steps_of(name) > MAX_STEPS
    assert not found.matches(name)


@pytest.mark.parametrize("pattern", ["app-.*", ".*app.*", "app-[a-z]*", ".*z"])
def test_usual_patterns_match_the_longest_names(pattern: str) -> None:
    assert compiled(pattern).matches("app-" + "z" * 32_763)
