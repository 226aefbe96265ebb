"""The wheels of dist/: their content, and that they work next to files of any name. `make packages` builds them first."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.installed import (
    USERS_FILES,
    Environment,
    InstalledNode,
    installed,
    ran,
    users_folder,
    versions,
    wheels,
)
from tests.support.node import ROOT

pytestmark = pytest.mark.packages

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION: str = PROJECT["version"]
URLS: dict[str, str] = PROJECT["urls"]
#: By distribution: folders of the source tree, and their places in its wheel.
PLACES = {
    "tidelog": {"tidelog": "tidelog", "storage_tiers": "storage_tiers", "grpc_api": "grpc_api"}
    | {"spark/pyspark_tidelog": "pyspark_tidelog"},
    "tidelog_server": {"packaging/server/tidelog_server": "tidelog_server"}
    | {package: f"tidelog_server/{package}" for package in ("service", "kafka_gateway", "lambdas")},
}
ALL = [wheel for name in PLACES for wheel in wheels(name)]
#: Bytes of a stripped kernel. With symbols and debugging information a kernel takes about 1.6 MB.
LARGEST_KERNEL = 400_000


def test_there_are_wheels_of_both_for_each_python() -> None:
    assert versions(), "dist/ holds no wheels: run `make packages`"
    for name in PLACES:
        assert [wheel.name.split("-")[2] for wheel in wheels(name)] == versions()


@pytest.mark.parametrize("wheel", ALL, ids=lambda wheel: wheel.name)
class TestContents:
    def test_the_wheel_has_the_tracked_files_and_its_own_kernels(self, wheel: Path) -> None:
        name, _, tag, *_ = wheel.name.split("-")
        wanted = set()
        for place, inside in PLACES[name].items():
            listed = subprocess.run(["git", "ls-files", place], cwd=ROOT, capture_output=True, text=True, check=True)
            wanted |= {f"{inside}{path.removeprefix(place)}" for path in listed.stdout.split()}
        held = {each for each in names(wheel) if ".dist-info/" not in each}
        kernels = {each for each in held if each.endswith(".so")}
        assert held - kernels == wanted
        assert kernels
        assert {each for each in kernels if f".{tag.replace('cp', 'cpython-')}-" not in each} == set()
        sources = {each.partition(".")[0] + ".py" for each in kernels}
        assert sources <= wanted

    def test_its_top_level_names_are_its_own(self, wheel: Path) -> None:
        allowed = {"tidelog": set(PLACES["tidelog"].values()), "tidelog_server": {"tidelog_server"}}
        tops = {each.partition("/")[0] for each in names(wheel) if ".dist-info/" not in each}
        assert tops == allowed[wheel.name.split("-")[0]]

    def test_kernels_carry_no_symbols(self, wheel: Path) -> None:
        with zipfile.ZipFile(wheel) as archive:
            sizes = {each.filename: each.file_size for each in archive.infolist() if each.filename.endswith(".so")}
        assert max(sizes.values()) < LARGEST_KERNEL, sizes

    def test_an_old_c_library_is_enough(self, wheel: Path) -> None:
        assert "manylinux_2_17" in wheel.name or "manylinux_2_28" in wheel.name

    def test_the_metadata_say_licence_python_and_links(self, wheel: Path) -> None:
        (place,) = (each for each in names(wheel) if each.endswith(".dist-info/METADATA"))
        with zipfile.ZipFile(wheel) as archive:
            metadata = archive.read(place).decode()
            licence = archive.read(place.replace("METADATA", "licenses/LICENSE"))
        assert licence == (ROOT / "LICENSE").read_bytes()
        assert "\nLicense-Expression: Apache-2.0\n" in metadata
        assert "\nRequires-Python: >=3.11\n" in metadata
        assert f"\nVersion: {VERSION}\n" in metadata
        for link, address in URLS.items():
            assert f"\nProject-URL: {link}, {address}\n" in metadata
        if wheel.name.startswith("tidelog_server"):
            assert f"\nRequires-Dist: tidelog=={VERSION}\n" in metadata


def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return [each for each in archive.namelist() if not each.endswith("/")]


@pytest.fixture(scope="module", params=versions())
def python(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def embedded(python: str, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment that has `tidelog` without any extra."""
    return installed(tmp_path_factory.mktemp("embedded") / "environment", python, [f"tidelog=={VERSION}"])


@pytest.fixture(scope="module")
def whole(python: str, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment that has the server together with `tidelog[arrow]`."""
    wanted = [f"tidelog[arrow]=={VERSION}", f"tidelog-server=={VERSION}"]
    return installed(tmp_path_factory.mktemp("whole") / "environment", python, wanted)


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return users_folder(tmp_path_factory.mktemp("user"))


OWN = "import service, spark, contract, kafka_gateway, lambdas; assert service.OWN and spark.OWN and lambdas.OWN\n"


def test_tidelog_alone_installs_beside_a_users_files(embedded: Environment, user: Path) -> None:
    (user / "program.py").write_text(
        OWN
        + """
from tidelog import BlockingClient, Client, ColdBucket, LogError, tables
import pyspark_tidelog
import storage_tiers.records.walker
print(storage_tiers.records.walker.__file__.endswith(".so"))
try:
    tables(store="s3://bucket", topics="a")
except ModuleNotFoundError as error:
    print(error)
try:
    with ColdBucket.open("s3://bucket"):
        pass
except LogError as error:
    print(error)
"""
    )
    assert ran([embedded.python, "program.py"], user).splitlines() == [
        "True",
        "reading s3://bucket as Arrow needs pyarrow, boto3: pip install 'tidelog[arrow]'",
        "s3://bucket needs boto3: pip install 'tidelog[arrow]'",
    ]
    assert not embedded.command.exists()
    assert "No broken requirements" in ran([embedded.python, "-m", "pip", "check"], user)


@pytest.fixture
def node(whole: Environment, user: Path, tmp_path: Path) -> Iterator[InstalledNode]:
    users_folder(tmp_path)
    (tmp_path / "storage_tiers").mkdir()
    (tmp_path / "storage_tiers" / "__init__.py").write_text("raise AssertionError('of the current directory')\n")
    node = InstalledNode(whole, tmp_path, user)
    with node:
        yield node


def test_both_distributions_install_beside_a_users_files(
    node: InstalledNode, embedded: Environment, whole: Environment, user: Path
) -> None:
    """A record goes from a client to the bucket and back with the installed packages; the take-over verifies its own result."""
    at = ["--bootstrap-server", node.kafka]
    path = {"PYTHONPATH": str(user)}
    ran([whole.command, "topic", "create", "drinks", *at], node.directory, **path)
    (user / "sends.py").write_text(
        OWN
        + """
import sys
from tidelog import BlockingClient
with BlockingClient.connect(sys.argv[1]) as client:
    with client.producer() as producer:
        print(producer.send("drinks", b"tea").result().offset)
    client.seal("drinks")
"""
    )
    assert ran([embedded.python, "sends.py", node.grpc], user) == "0\n"
    assert ran([whole.command, "consume", "drinks", "--exit-at-end", *at], node.directory, **path) == "tea\n"
    (user / "reads.py").write_text(
        OWN
        + """
import sys
from tidelog import ColdBucket, tables
with ColdBucket.open(sys.argv[1]) as bucket:
    print([message.value for message in bucket.read("drinks")])
if len(sys.argv) > 2:
    print(tables(store=sys.argv[1], topics="drinks").table()["value"].to_pylist())
"""
    )
    assert ran([embedded.python, "reads.py", node.store_path], user) == "[b'tea']\n"
    assert ran([whole.python, "reads.py", node.store_path, "arrow"], user) == "[b'tea']\n[b'tea']\n"
    (cluster,) = (path.parent.name for path in node.store_path.glob("*/cluster.json"))
    assert node.stop() == 0
    assert ran([whole.command, "fsck", "--store", node.store_path], node.directory, **path).startswith("sound")
    shutil.rmtree(node.data_dir)
    node.flags = ["--take-over", cluster, "--verify"]
    node.start()
    assert ran([whole.command, "consume", "drinks", "--exit-at-end", *at], node.directory, **path) == "tea\n"


def test_nothing_of_a_users_is_overwritten(whole: Environment, embedded: Environment) -> None:
    """No top-level name of a server package is installed, as another module of that name may be in the environment."""
    for environment in (whole, embedded):
        here = {path.name for path in environment.site.iterdir()}
        assert here & {name.partition("/")[0] for name in USERS_FILES} == set()
        assert here & {"service", "lambdas", "kafka_gateway", "tests", "benchmarks", "examples", "scripts"} == set()
