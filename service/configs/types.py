"""Values of configs: Kafka's kinds, their text form, and the rules for a value.

Parsing, formatting and wording follow Kafka's ConfigDef, because tools print the texts and tests match them. Most refusals read
"Invalid value X for configuration K: why". Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from ipaddress import ip_address
from math import isinf
from typing import TypeAlias

from grpc_api.contract.topics import ConfigKind
from storage_tiers.errors import InvalidConfig

Value: TypeAlias = bool | int | float | str | tuple[str, ...]
#: Called with a key's name and its value. Raises InvalidConfig if the value breaks the rule.
Validator: TypeAlias = Callable[[str, Value], None]

_INTEGER = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_COMMA = re.compile(r"\s*,\s*")
#: The maximum number of characters of a value: the limit of Kafka's strings in versions that are not flexible. This bound also
#: limits lists, to which clients could append endlessly.
LONGEST_VALUE = 32_767
#: The maximum number of digits of a number, including leading zeros.
LONGEST_NUMBER = 1_000
_BITS = {ConfigKind.SHORT: 16, ConfigKind.INT: 32, ConfigKind.LONG: 64}


def refusal(name: str, shown: object, why: str) -> InvalidConfig:
    return InvalidConfig(f"Invalid value {shown} for configuration {name}: {why}")


def check_length(name: str, text: str) -> None:
    """Raises InvalidConfig for more than LONGEST_VALUE characters. The message does not contain the text."""
    if len(text) > LONGEST_VALUE:
        raise InvalidConfig(
            f"The value for configuration {name} has {len(text)} characters; at most {LONGEST_VALUE} are allowed"
        )


def parse(name: str, kind: ConfigKind, text: str) -> Value:
    """The value of `text`, without surrounding spaces. Raises InvalidConfig if the text is not a value of that kind."""
    check_length(name, text)
    trimmed = text.strip()
    if kind is ConfigKind.BOOLEAN:
        if trimmed.lower() not in ("true", "false"):
            raise refusal(name, text, "Expected value to be either true or false")
        return trimmed.lower() == "true"
    if kind in _BITS:
        bound = 1 << (_BITS[kind] - 1)
        # Python's `int` parses at most 4,300 digits.
        if len(trimmed) > LONGEST_NUMBER or not _INTEGER.fullmatch(trimmed) or not -bound <= int(trimmed) < bound:
            raise refusal(name, text, f"Not a number of type {kind.name}")
        return int(trimmed)
    if kind is ConfigKind.DOUBLE:
        if not _FLOAT.fullmatch(trimmed):
            raise refusal(name, text, "Not a number of type DOUBLE")
        return float(trimmed)
    if kind is ConfigKind.LIST:
        items = split_list(trimmed)
        if not all(items):
            raise InvalidConfig(f"Configuration '{name}' values must not be empty.")
        return items
    return text if kind is ConfigKind.PASSWORD else trimmed


def is_number(digits: str, number: int) -> bool:
    """Whether `digits` is the decimal form of `number`. Longer texts than LONGEST_NUMBER are not parsed, because a client may
    send millions of digits."""
    return len(digits) <= LONGEST_NUMBER and int(digits) == number


def split_list(text: str) -> tuple[str, ...]:
    """The items in order, without duplicates."""
    return tuple(dict.fromkeys(_COMMA.split(text.strip()))) if text.strip() else ()


def format_value(value: Value | None) -> str | None:
    """The text that DescribeConfigs shows."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return _format_double(value) if isinstance(value, float) else str(value)


def _format_double(value: float) -> str:
    """The text that Java prints, such as 1.0E-8 where Python prints 1e-08."""
    if isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    mantissa, _, exponent = f"{Decimal(repr(value)).normalize():E}".partition("E")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(exponent)}"


# --- rules ------------------------------------------------------------------------------------------------------------


def between(low: float | None = None, high: float | None = None) -> Validator:
    """Allows numbers from `low` to `high`, both included."""

    def check(name: str, value: Value) -> None:
        assert isinstance(value, int | float)
        if low is not None and value < low:
            raise refusal(name, value, f"Value must be at least {low}")
        if high is not None and value > high:
            raise refusal(name, value, f"Value must be no more than {high}")

    return check


def at_least(low: int) -> Validator:
    return between(low)


def between_or(low: int, high: int, other: int) -> Validator:
    def check(name: str, value: Value) -> None:
        assert isinstance(value, int)
        if value != other and not low <= value <= high:
            raise refusal(name, value, f"Value must be between {low} and {high} or equal to {other}")

    return check


def one_of(*allowed: str) -> Validator:
    """Allows these strings, as the value or as the items of a list."""

    def check(name: str, value: Value) -> None:
        assert isinstance(value, str | tuple)
        for item in (value,) if isinstance(value, str) else value:
            if item not in allowed:
                raise refusal(name, item, f"String must be one of: {', '.join(allowed)}")

    return check


def any_case(*allowed: str) -> Validator:
    """Allows these strings regardless of case."""

    def check(name: str, value: Value) -> None:
        assert isinstance(value, str)
        if value.upper() not in allowed:
            shown = ", ".join(allowed)
            raise refusal(name, value, f"String must be one of (case insensitive): {shown}")

    return check


def non_empty(name: str, value: Value) -> None:
    if value == "":
        raise refusal(name, value, "String must be non-empty")


def unlimited_or_positive(name: str, value: Value) -> None:
    assert isinstance(value, int)
    if value != -1 and value < 1:
        raise refusal(name, value, "Value must be unlimited (-1) or at least 1")


def connection_counts(text: str) -> dict[str, int]:
    """Parses `address:count` pairs, separated by commas, with IPv6 in brackets. Raises ValueError for another form or a host
    name. Host names are not resolved, because that may be slow."""
    found = {}
    for item in split_list(text):
        host, colon, count = item.rpartition(":")
        if not (colon and count.isdecimal()):
            raise ValueError(f"{item!r} is not address:count")
        found[str(ip_address(host.removeprefix("[").removesuffix("]")))] = int(count)
    return found


def connection_overrides(name: str, value: Value) -> None:
    assert isinstance(value, str)
    try:
        connection_counts(value)
    except ValueError as error:
        raise refusal(name, value, f"{error}; write address:count, several separated by commas") from None


def throttled_replicas(name: str, value: Value) -> None:
    assert isinstance(value, tuple)
    if value in ((), ("*",)) or all(re.fullmatch(r"[0-9]+:[0-9]+", item) for item in value):
        return
    raise refusal(
        name,
        f"[{', '.join(value)}]",
        f"{name} must be the literal '*' or a list of replicas in the following format: "
        "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
    )


def nearest(name: str, known: Sequence[str]) -> list[str]:
    """Up to three known names that are similar to `name`, the most similar first."""
    import difflib

    folded = name.lower().replace("_", ".").replace("-", ".")
    if folded in known:
        return [folded]
    return difflib.get_close_matches(folded, known, n=3, cutoff=0.7)
