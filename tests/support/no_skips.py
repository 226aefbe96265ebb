"""A pytest plugin: a test that is skipped, or expected to fail, fails the run unless a row of `ALLOWED` gives the reason.

    pytest -p tests.support.no_skips ...

For continuous integration, where everything that the tests need is installed: without the plugin, a missing tool (versitygw,
terraform, a tmpfs, the compiled kernels) would skip whole suites and leave the run green.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import pytest


@dataclasses.dataclass(frozen=True)
class Allowed:
    """`test` is searched for in the test's id, `said` in the reason it states; `why` is our explanation."""

    test: str
    said: str
    why: str


ALLOWED = (
    Allowed(
        r"/test_object_store\.py::TestS3::test_listings_longer_than_a_page_are_complete\[moto-",
        r"moto needs seconds",
        "the same code lists the same thousand keys on versitygw",
    ),
    Allowed(
        r"/test_object_store\.py::TestS3::test_odd_keys_are_keys\[(moto|versitygw)-",
        r"this server maps keys to paths",
        "the test server refuses the key; the memory and directory stores are tested with all of them",
    ),
    Allowed(
        r"/test_kubernetes\.py::test_kustomize_builds_them",
        r"no kubectl",
        "no registry of packages has it; the same resources are validated against their schemas file by file",
    ),
    Allowed(
        r"/test_scheduling\.py::",
        r"this kernel grants no slices|no schedstat",
        "Linux before 6.12 has no slices, so a node on it requests none; schedstat is a build option of the kernel",
    ),
)


class Unexpected:
    """Collects reports, in the process that receives the reports of all tests."""

    def __init__(self, allowed: Sequence[Allowed] = ALLOWED) -> None:
        self._allowed = allowed
        self.found: list[str] = []

    def hear(self, test: str, said: str) -> None:
        if not any(re.search(row.test, test) and re.search(row.said, said) for row in self._allowed):
            self.found.append(f"{test}: {said}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped or hasattr(report, "wasxfail"):
            self.hear(report.nodeid, getattr(report, "wasxfail", "") or reason(report))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.hear(report.nodeid, reason(report))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.found and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.found:
            terminalreporter.section("skipped, and no row of tests/support/no_skips.py allows it", red=True)
            for line in self.found:
                terminalreporter.line(line)


def reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    return str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # a worker of xdist reports to the process that started it
        config.pluginmanager.register(Unexpected(), "unexpected skips")
