"""The patterns by which a subscription may match clients: none of them can stall the node."""

from __future__ import annotations

import re

import pytest

from kafka_gateway.telemetry import LONGEST_MATCHED
from service.configs.match_patterns import is_quick


@pytest.mark.parametrize(
    "pattern",
    ["", "prod-.*", ".*eu.*west.*", "[a-z]+-[0-9]+", "(a|b)-(c|d)", "1[.](2|3)[.].*", "(ab)*c", "(?i)java", "a{2,9}"],
)
def test_usual_patterns_are_accepted(pattern: str) -> None:
    assert is_quick(pattern)


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
    assert not is_quick(pattern)


@pytest.mark.parametrize("pattern", ["(", "a{2,1}", "(" * 5000 + ")" * 5000, "a{99999999999999999999}", "[z-a]"])
def test_invalid_patterns_are_refused(pattern: str) -> None:
    assert not is_quick(pattern)


@pytest.mark.parametrize("pattern", [".*a.*b.*c", "[a-z]+a[a-z]+b", "(a|a)(a|a)(a|a)a*b"])
def test_the_slowest_accepted_pattern_ends(pattern: str) -> None:
    assert is_quick(pattern)
    assert re.fullmatch(pattern, "a" * LONGEST_MATCHED) is None
