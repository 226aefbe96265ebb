"""The patterns by which a subscription may match clients: none of them can stall the node."""

from __future__ import annotations

import re

import pytest

from kafka_gateway.match_patterns import LENGTHS, LONGEST_MATCHED, LONGEST_OF_THREE_REPEATS, longest_text


@pytest.mark.parametrize(
    "pattern",
    ["", "prod-.*", ".*eu.*west.*", "[a-z]+-[0-9]+", "(a|b)-(c|d)", "1[.](2|3)[.].*", "(ab)*c", "(?i)java", "a{2,9}"],
)
def test_usual_patterns_are_accepted(pattern: str) -> None:
    assert longest_text(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+b",
        "(a*)*",
        "(a|aa)+b",
        "(x+x+)+y",
        ".*.*.*.*b",
        "(a?){60}a{60}",
        "a?" * 30 + "a" * 30,
        "(?:(?:a|ab)(?:c|bcd)?)*e",
        "(?=(a+)+b)a*",
        "(a+)+?b",
        "(a|aa)" * 22 + "b",
    ],
)
def test_patterns_with_exponential_time_are_refused(pattern: str) -> None:
    re.compile(pattern)
    assert longest_text(pattern) == 0


@pytest.mark.parametrize("pattern", ["(", "a{2,1}", "(" * 5000 + ")" * 5000, "a{99999999999999999999}", "[z-a]"])
def test_invalid_patterns_are_refused(pattern: str) -> None:
    assert longest_text(pattern) == 0


@pytest.mark.parametrize(
    ("pattern", "longest"),
    [
        (".*a.*b.*c", LONGEST_OF_THREE_REPEATS),
        ("[a-z]*[a-z]*[a-z]*b", LONGEST_OF_THREE_REPEATS),
        ("[a-z]+a[a-z]+b", LONGEST_MATCHED),
        ("(a|a)(a|a)(a|a)a*b", LONGEST_MATCHED),
    ],
)
def test_the_slowest_accepted_pattern_ends(pattern: str, longest: int) -> None:
    assert longest_text(pattern) == longest
    assert re.fullmatch(pattern, "a" * longest) is None


def test_ways_are_counted_for_the_length_of_the_text() -> None:
    """A pattern with three repeats has eight times as many ways to match a text twice as long."""
    assert sorted(LENGTHS, reverse=True) == list(LENGTHS)
    assert [longest_text("a*" * repeats + "b") for repeats in range(1, 5)] == [128, 128, 64, 0]
