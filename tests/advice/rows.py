"""The rows of the table of advice (`table.py`), and the prefixes of the tests that they name."""

from __future__ import annotations

from dataclasses import dataclass

DIRECTORY = "tests/advice/test_directory_advice.py::test_"
STORE = "tests/advice/test_store_advice.py::test_"
REPAIR = "tests/advice/test_repair_advice.py::test_"
REQUESTS = "tests/advice/test_requests_advice.py::test_"
WORDS = "tests/advice/test_command_line_advice.py::test_"
DAMAGE = "tests/advice/test_damage_advice.py::test_"
LIBRARIES = "tests/advice/test_library_advice.py::test_"
HOT = "tests/storage_tiers/hot/"
COLD = "tests/storage_tiers/cold/"
TIER = "tests/storage_tiers/tier/"
BROKER = "tests/service/broker/"
FAULTS = "tests/faults/"
SDK = "tests/grpc_api/sdk/"
SERVICERS = "tests/grpc_api/servicers/"
GATEWAY = "tests/kafka_gateway/"
SPARK = "tests/spark/"


@dataclass(frozen=True)
class Row:
    """`pattern` is a regular expression searched for in the texts; `tests` are node ids without parameters."""

    pattern: str
    tests: tuple[str, ...]


def row(pattern: str, *tests: str) -> Row:
    return Row(pattern, tests)
