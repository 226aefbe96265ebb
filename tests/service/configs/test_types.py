"""Parsing of config values; the error texts are those of Apache Kafka 4.2.1."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpc_api.contract.topics import ConfigKind
from service.configs.types import Value, format_value, nearest, parse
from storage_tiers.errors import InvalidConfig

GOOD: list[tuple[ConfigKind, str, Value, str]] = [
    (ConfigKind.BOOLEAN, "TRUE", True, "true"),
    (ConfigKind.BOOLEAN, " false ", False, "false"),
    (ConfigKind.INT, " 2000000 ", 2_000_000, "2000000"),
    (ConfigKind.INT, "+5", 5, "5"),
    (ConfigKind.INT, "-2147483648", -(2**31), "-2147483648"),
    (ConfigKind.SHORT, "32767", 32767, "32767"),
    (ConfigKind.LONG, "9223372036854775807", 2**63 - 1, "9223372036854775807"),
    (ConfigKind.DOUBLE, "1e-1", 0.1, "0.1"),
    (ConfigKind.DOUBLE, "1", 1.0, "1.0"),
    (ConfigKind.DOUBLE, "0.00000001", 1e-8, "1.0E-8"),
    (ConfigKind.DOUBLE, "12500000", 12_500_000.0, "1.25E7"),
    (ConfigKind.DOUBLE, "0.001", 0.001, "0.001"),
    (ConfigKind.LIST, " compact , delete ", ("compact", "delete"), "compact,delete"),
    (ConfigKind.LIST, "delete,delete", ("delete",), "delete"),
    (ConfigKind.LIST, "", (), ""),
    (ConfigKind.STRING, " gzip ", "gzip", "gzip"),
    (ConfigKind.CLASS, "a.b.C", "a.b.C", "a.b.C"),
    (ConfigKind.PASSWORD, " secret ", " secret ", " secret "),
]


@pytest.mark.parametrize(("kind", "text", "value", "shown"), GOOD)
def test_values_are_parsed_and_printed(kind: ConfigKind, text: str, value: Value, shown: str) -> None:
    parsed = parse("key", kind, text)
    assert parsed == value
    assert type(parsed) is type(value)
    assert format_value(parsed) == shown


BAD: list[tuple[ConfigKind, str, str]] = [
    (ConfigKind.BOOLEAN, "yes", "Expected value to be either true or false"),
    (ConfigKind.BOOLEAN, "", "Expected value to be either true or false"),
    (ConfigKind.INT, "2147483648", "Not a number of type INT"),
    (ConfigKind.INT, "1.5", "Not a number of type INT"),
    (ConfigKind.INT, "2,000", "Not a number of type INT"),
    (ConfigKind.SHORT, "32768", "Not a number of type SHORT"),
    (ConfigKind.LONG, "9223372036854775808", "Not a number of type LONG"),
    (ConfigKind.LONG, "5_0", "Not a number of type LONG"),
    (ConfigKind.LONG, "٥", "Not a number of type LONG"),
    (ConfigKind.LONG, "", "Not a number of type LONG"),
    (ConfigKind.DOUBLE, "x", "Not a number of type DOUBLE"),
    (ConfigKind.DOUBLE, "nan", "Not a number of type DOUBLE"),
]


@pytest.mark.parametrize(("kind", "text", "why"), BAD)
def test_malformed_values_are_refused(kind: ConfigKind, text: str, why: str) -> None:
    with pytest.raises(InvalidConfig) as error:
        parse("key", kind, text)
    assert str(error.value) == f"Invalid value {text} for configuration key: {why}"


@pytest.mark.parametrize("text", ["delete,", ",", "a,,b"])
def test_a_list_has_no_empty_items(text: str) -> None:
    with pytest.raises(InvalidConfig, match=r"Configuration 'cleanup.policy' values must not be empty"):
        parse("cleanup.policy", ConfigKind.LIST, text)


@pytest.mark.parametrize(("text", "shown"), [("1e400", "Infinity"), ("-1e400", "-Infinity")])
def test_doubles_beyond_the_largest_are_printed_as_java_does(text: str, shown: str) -> None:
    assert format_value(parse("k", ConfigKind.DOUBLE, text)) == shown


@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_printed_doubles_are_read_back_exactly(value: float) -> None:
    shown = format_value(value)
    assert shown is not None
    assert parse("key", ConfigKind.DOUBLE, shown) == value


def test_an_unset_value_is_printed_as_none() -> None:
    assert format_value(None) is None


def test_the_nearest_names_are_found() -> None:
    known = ["log.retention.ms", "log.retention.bytes", "num.partitions"]
    assert nearest("log.retension.ms", known)[0] == "log.retention.ms"
    assert nearest("LOG_RETENTION_MS", known) == ["log.retention.ms"]
    assert nearest("completely.else", known) == []
