"""The statements of both pyproject.toml files hold: versions, lower bounds, and the names that programs import."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import tidelog
import tidelog.errors
from grpc_api.contract import coordinator_errors
from grpc_api.proto.generate import sources
from scripts.lowest_versions import bound, lower_bounds, requirements
from scripts.packages import VERSIONS
from storage_tiers import errors
from tests.support.node import ROOT

SERVER = ROOT / "packaging" / "server"


def project(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return found


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def test_both_have_one_version_and_the_server_requires_it() -> None:
    version = project(ROOT)["version"]
    assert project(SERVER)["version"] == version
    assert f"tidelog=={version}" in project(SERVER)["dependencies"]
    assert f"\n## {version}" in (ROOT / "CHANGELOG.md").read_text()


def test_a_program_can_read_its_version() -> None:
    assert tidelog.__version__ == project(ROOT)["version"]


def test_both_say_the_same_of_licence_and_python() -> None:
    for key in ("license", "license-files", "requires-python"):
        assert project(ROOT)[key] == project(SERVER)[key]
    assert (SERVER / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    for folder in (ROOT, SERVER):
        named = {each.rpartition(" ")[2] for each in project(folder)["classifiers"] if "Python ::" in each}
        assert named == set(VERSIONS)


def test_both_link_to_files_of_the_repository() -> None:
    urls = project(ROOT)["urls"]
    assert project(SERVER)["urls"] == urls
    assert set(urls) == {"Homepage", "Repository", "Documentation", "Issues", "Changelog"}
    repository = urls["Repository"]
    assert {urls[name] for name in ("Homepage", "Issues")} == {repository, f"{repository}/issues"}
    for name in ("Documentation", "Changelog"):
        assert (ROOT / urls[name].removeprefix(repository).rpartition("/main/")[2]).exists()


@pytest.mark.parametrize("requirement", list(requirements()))
def test_every_requirement_has_a_lower_bound(requirement: str) -> None:
    assert bound(requirement)


def test_the_lower_bounds_are_those_of_the_generated_code() -> None:
    """protobuf and grpcio refuse to import code that a newer compiler has generated."""
    made_with: dict[str, set[str]] = {"protobuf": set(), "grpcio": set()}
    for source in sources():
        code = source.with_name(f"{source.stem}_pb2.py").read_text()
        made_with["protobuf"] |= set(re.findall(r"^# Protobuf Python Version: (\S+)$", code, re.MULTILINE))
        stubs = source.with_name(f"{source.stem}_pb2_grpc.py")
        if stubs.exists():
            found = re.findall(r"^GRPC_GENERATED_VERSION = '(.*)'$", stubs.read_text(), re.MULTILINE)
            made_with["grpcio"] |= set(found)
    low = lower_bounds()
    assert {name: {low[name]} for name in made_with} == made_with
    assert low["grpcio-health-checking"] == low["grpcio-reflection"] == low["grpcio"]


def test_the_pinned_versions_are_within_the_bounds() -> None:
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    low = lower_bounds()
    below = {
        name: pinned[name]
        for name in low
        if numbers(re.match(r"[\d.]*\d", pinned[name])[0]) < numbers(low[name])  # type: ignore[index]
    }
    assert below == {}


def test_every_name_that_programs_import_is_there() -> None:
    assert {"Client", "BlockingClient", "ColdBucket", "tables"} <= set(dir(tidelog))
    for name, home in tidelog.HOMES.items():
        assert getattr(tidelog, name) is getattr(importlib.import_module(home), name)
        assert home.partition(".")[0] in {"grpc_api", "storage_tiers", "pyspark_tidelog"}
    with pytest.raises(AttributeError, match="has no attribute 'Broker'"):
        tidelog.Broker  # noqa: B018
    with pytest.raises(ImportError):
        exec("from tidelog import Broker")


def test_programs_import_every_error_from_one_module() -> None:
    theirs = {
        name
        for name, value in {**vars(errors), **vars(coordinator_errors)}.items()
        if isinstance(value, type) and issubclass(value, errors.LogError)
    }
    assert theirs | {"Advice", "RecordFault"} == set(tidelog.errors.__all__)
    assert tidelog.errors.LogError is tidelog.LogError


def test_the_import_loads_only_the_requested_modules() -> None:
    program = """
import sys
def brought(): return sorted({"grpc", "grpc_api", "storage_tiers", "pyspark_tidelog", "boto3", "pyarrow"} & set(sys.modules))
import tidelog; print(brought())
from tidelog import tables; print("grpc" in sys.modules, "pyarrow" in sys.modules)
from tidelog import ColdBucket; print("grpc" in sys.modules, "boto3" in sys.modules)
from tidelog import Client; print("grpc" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["[]", "False False", "False False", "True"]


def test_type_checkers_see_the_same_names() -> None:
    source = (ROOT / "tidelog" / "__init__.py").read_text()
    typed = re.findall(r"^    from (\S+) import (\w+) as \2$", source, re.MULTILINE)
    assert {name for _, name in typed} == set(tidelog.HOMES)


def test_the_server_is_found_whatever_the_path_holds(tmp_path: Path) -> None:
    """The layout is that of an installed wheel; a user's file with the name of one of our packages comes first on the path."""
    user, site = tmp_path / "user", tmp_path / "site"
    user.mkdir()
    (user / "service.py").write_text("raise AssertionError('the file of the user was imported')\n")
    package = site / "tidelog_server"
    (package / "service" / "cli").mkdir(parents=True)
    (package / "__init__.py").write_bytes((SERVER / "tidelog_server" / "__init__.py").read_bytes())
    (package / "__main__.py").write_bytes((SERVER / "tidelog_server" / "__main__.py").read_bytes())
    for folder in (package / "service", package / "service" / "cli"):
        (folder / "__init__.py").touch()
    (package / "service" / "cli" / "main.py").write_text("def app():\n    print('the server')\n")
    done = subprocess.run(
        [sys.executable, "-m", "tidelog_server"],
        cwd=user,
        env={"PYTHONPATH": f"{user}:{site}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("the server\n", "")
