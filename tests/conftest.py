"""The S3 servers, one of each per test process and only if a test asks for it. Other fixtures stand beside their tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from hypothesis import settings

# A busy machine makes any example slow now and then.
settings.register_profile("without deadlines", deadline=None)
settings.load_profile("without deadlines")

pytest.register_assert_rewrite("tests.conformance.object_store")

from tests.support import s3_servers  # noqa: E402

#: Characters of a parameter in a test's id.
LONGEST_PARAMETER = 100


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Ids are sent to each worker, and back with each report: some parameters are megabytes long."""
    return f"{argname} of {len(val)}" if isinstance(val, str | bytes) and len(val) > LONGEST_PARAMETER else None


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a fixture of their module run in one worker, so that it is made once. Tests of the fault suites, which
    take minutes, are spread."""
    for item in items:
        alone = item.get_closest_marker("xdist_group") is None and item.get_closest_marker("faults") is None
        if alone and _shares_a_module_fixture(item):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.split("::")[0]))


def _shares_a_module_fixture(item: pytest.Item) -> bool:
    known = getattr(item, "_fixtureinfo", None)
    return known is not None and any(
        each.scope == "module" for name in known.names_closure for each in known.name2fixturedefs.get(name, ())[-1:]
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fails if groups are ignored, as by pytest-xdist 3.8 with pytest 9.2: tests of one node would run in several workers."""
    if not getattr(session.config.option, "loadgroup", False):
        return
    for item in session.items:
        if item.get_closest_marker("xdist_group") is not None and "@" not in item.nodeid:
            raise pytest.UsageError(
                f"pytest-xdist ignores the group of {item.nodeid}: install the pytest of constraints.txt"
            )


@pytest.fixture(autouse=True)
def own_log_handlers() -> Iterator[None]:
    """Restores the process's log, which a command that runs within a test sets up for a stream that ends with the test."""
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.fixture(scope="session")
def moto() -> Iterator[s3_servers.S3Server]:
    s3_servers.set_environment()
    with s3_servers.moto_server() as server:
        yield server


@pytest.fixture(scope="session")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3_servers.S3Server]:
    problem = s3_servers.versitygw_missing()
    if problem is not None:
        pytest.skip(problem)
    s3_servers.set_environment()
    with s3_servers.versitygw_server(tmp_path_factory.mktemp("versitygw")) as server:
        yield server
