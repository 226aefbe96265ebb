"""docs/clients.md lists the clients and the versions that these tests use."""

from __future__ import annotations

import json
import re
import subprocess
from importlib.metadata import version

from confluent_kafka import libversion

from tests.clients.generate_docs import PAGE, filled
from tests.clients.samples import CODECS
from tests.clients.writers import WRITERS
from tests.support import kafka_jars, node_packages


def row(page: str, first: str, heading: str) -> list[str]:
    """The cells of the row that begins with `first`, in the table whose header row begins with `heading`."""
    table = page[page.index(f"| {heading} |") :].split("\n\n")[0]
    found = re.search(rf"^\| {re.escape(first)}[^|]*\|(.*)\|$", table, re.MULTILINE)
    assert found is not None, first
    return [cell.strip() for cell in found[1].split("|")]


def test_the_generated_parts_of_the_page_are_current() -> None:
    page = PAGE.read_text()
    assert filled(page) == page, "run `python -m tests.clients.generate_docs`"


def test_the_versions_on_the_page_are_the_installed_ones() -> None:
    page = PAGE.read_text()
    rdkafka = f"{version('confluent-kafka')} ({libversion()[0]})"
    assert row(page, "confluent-kafka", "client")[0] == rdkafka
    assert row(page, "kafka-python", "client")[0] == version("kafka-python")
    assert row(page, "aiokafka", "client")[0] == version("aiokafka")
    assert row(page, "Java", "client")[0] == kafka_jars.VERSION
    wanted = json.loads((node_packages.SOURCE / "package.json").read_text())["dependencies"]
    assert row(page, "kafkajs", "client")[0] == wanted["kafkajs"]
    told = subprocess.run(["kcat", "-V"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"Version (\S+) .*librdkafka (\S+)", told)
    assert found is not None
    assert row(page, "kcat", "client")[0].startswith(found[1])


def test_the_cells_on_the_page_are_what_the_matrix_asserts() -> None:
    page = PAGE.read_text()
    heading = page[page.index("| written by |") :].split("\n")[0]
    assert [cell.strip() for cell in heading.strip("|").split("|")] == ["written by", *CODECS]
    for writer in WRITERS:
        cells = dict(zip(CODECS, row(page, writer, "written by"), strict=True))
        for codec, cell in cells.items():
            assert cell.startswith("yes"), (writer, codec)
