"""Static checks of the Dockerfile: its parts fit each other and the node. `make image` runs its steps."""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Sequence

import yaml

from scripts.image_in_chroot import DOCKERFILE, admitted, instructions
from service.configs.listeners import host_and_port
from service.settings.derived import listeners_of
from service.settings.node_settings import load_settings
from tests.packaging.test_kubernetes import resource
from tests.support.node import ROOT

STEPS = instructions(DOCKERFILE.read_text())
SECOND = max(at for at, (word, _) in enumerate(STEPS) if word == "FROM")
SETTINGS = load_settings({}, config_file=ROOT / "packaging" / "docker" / "node.toml", environ={})


def rests(word: str, steps: Sequence[tuple[str, str]] = STEPS[SECOND:]) -> list[str]:
    return [rest for each, rest in steps if each == word]


def test_the_image_has_two_stages_of_one_base_and_no_compiler_in_the_second() -> None:
    first, second = rests("FROM", STEPS)
    assert first == f"{second} AS build" and "slim" in second
    assert not any(word in run for run in rests("RUN") for word in ("apt-get", "pip", "gcc"))


def test_it_runs_as_a_user_without_rights_the_same_as_in_kubernetes() -> None:
    context = resource("StatefulSet")["spec"]["template"]["spec"]["securityContext"]
    assert rests("USER") == [f"{context['runAsUser']}:{context['runAsGroup']}"] != ["0:0"]
    assert f"useradd --uid {context['runAsUser']} " in rests("RUN")[0]


def test_the_exposed_ports_are_served_and_the_health_check_uses_one() -> None:
    ports = [each.port for each in listeners_of(SETTINGS).bound]
    ports += [host_and_port(SETTINGS.grpc_listener)[1], host_and_port(SETTINGS.http_listener)[1]]
    assert rests("EXPOSE") == [" ".join(map(str, ports))]
    assert f"http://127.0.0.1:{ports[-1]}/healthz" in rests("HEALTHCHECK")[0]
    (volume,) = rests("VOLUME")
    assert SETTINGS.data_dir.is_relative_to(volume) and SETTINGS.store.startswith(volume)


def test_its_command_is_the_servers_and_its_settings_are_copied() -> None:
    project = tomllib.loads((ROOT / "packaging" / "server" / "pyproject.toml").read_text())["project"]
    assert list(project["scripts"]) == json.loads(rests("ENTRYPOINT")[0])
    command = json.loads(rests("CMD")[0])
    assert command[:2] == ["serve", "--config"]
    assert f"packaging/docker/node.toml {command[2]}" in rests("COPY")


def test_the_build_context_has_the_needed_files_and_no_others() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    let_in = {name for name in tracked if admitted(name)}
    root = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = root["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    for name in tracked:
        if name.endswith(".py") and name.startswith(tuple(f"{package}/" for package in wheel)):
            assert name in let_in, name
    assert {"pyproject.toml", "hatch_build.py", "constraints.txt", "packaging/server/pyproject.toml"} <= let_in
    assert not any(name.startswith(("tests/", "benchmarks/", ".ci/", "terraform/")) for name in let_in)
    assert not admitted("storage_tiers/records/walker.cpython-311-x86_64-linux-gnu.so")


def test_compose_builds_it() -> None:
    compose = yaml.safe_load((ROOT / "packaging" / "compose.yaml").read_text())
    assert compose["services"]["tidelog"]["build"]["dockerfile"] == str(DOCKERFILE.relative_to(ROOT))
