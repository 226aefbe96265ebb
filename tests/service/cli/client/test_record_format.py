"""Record formats: each token, and agreement with what kcat prints for the same records."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from service.cli.client.record_format import ShownRecord, parse_format
from tests.service.cli.support import tidelog_process
from tests.support.clients import create
from tests.support.node import Node

pytestmark = pytest.mark.xdist_group("cli-format")

RECORD = ShownRecord("t", 3, 42, 1372636800123, "create_time", b"k\xff", b"va\0lue", (("a", b"1"), ("b", None)))
TOMBSTONE = ShownRecord("t", 0, 7, -1, None, None, None, ())


@pytest.mark.parametrize(
    ("text", "of_record", "of_tombstone"),
    [
        (r"%t [%p] %o\n", b"t [3] 42\n", b"t [0] 7\n"),
        ("%k|%s", b"k\xff|va\0lue", b"|"),
        ("%K %S", b"2 6", b"-1 -1"),
        ("%R", b"\0\0\0\6", b"\xff\xff\xff\xff"),
        ("%T", b"1372636800123", b"-1"),
        ("%h", b"a=1,b=NULL", b""),
        (r"100%% \t\r\n\\ \x41\x0a \101 \q", b"100% \t\r\n\\ A\n A q", b"100% \t\r\n\\ A\n A q"),
        # C's conversion to a char keeps the low byte of an octal number above 377.
        (r"\177\200\377\400\501", b"\x7f\x80\xff\0A", b"\x7f\x80\xff\0A"),
        ("", b"", b""),
        ("ü%", None, None),
        ("%z", None, None),
    ],
)
def test_every_token_of_a_format_is_printed(text: str, of_record: bytes | None, of_tombstone: bytes | None) -> None:
    if of_record is None:
        with pytest.raises(ValueError, match=r"unknown token %z?; known: %t topic, .*, and %% for a percent sign"):
            parse_format(text)
        return
    show = parse_format(text)
    assert (show(RECORD), show(TOMBSTONE)) == (of_record, of_tombstone)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("node")) as running:
        create(running, "t", 1, {})
        producer = Producer({"bootstrap.servers": running.kafka})
        records: list[tuple[bytes | None, bytes | None, Any]] = [
            (b"plain", b"key", []),
            (b"", b"", [("empty", b""), ("null", None)]),
            (None, b"tombstone", [("a", b"1"), ("a", b"2")]),
            (b"\0\xff%s\n", None, [("binary", b"\xfe")]),
        ]
        for value, key, headers in records:
            producer.produce("t", value, key, headers=headers, timestamp=1372636800123)
        assert producer.flush(30) == 0
        yield running


@pytest.mark.parametrize(
    "format_", [r"%t %p %o\n", r"%k=%s;", r"%K,%S,%T\t", "%R", r"%h\n", r"\x41\x7a %% \\ \r\n"], ids=repr
)
def test_formats_are_printed_as_kcat_prints_them(node: Node, format_: str) -> None:
    words = ["kcat", "-C", "-q", "-b", node.kafka, "-t", "t", "-p", "0", "-o", "beginning", "-e", "-f", format_]
    kcat = subprocess.run(words, capture_output=True, timeout=60, check=True).stdout

    ran = tidelog_process("consume", "t", "-e", "-f", format_, "-b", node.kafka)

    assert (ran.code, ran.stdout) == (0, kcat)
