"""The Kubernetes manifests: kustomize builds them, they match Kubernetes' schemas, and they agree with the node."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpc_api.contract.topics import Endpoint
from service.configs.listeners import host_and_port
from service.settings.derived import listeners_of
from service.settings.node_settings import load_settings
from tests.support import kubernetes_schemas
from tests.support.node import ROOT

FOLDER = ROOT / "packaging" / "kubernetes"
RELEASES = ("1.28", kubernetes_schemas.VERSION.rpartition(".")[0])
POD = {"POD_NAME": "tidelog-0", "POD_NAMESPACE": "logs"}


def files() -> list[Path]:
    return sorted(path for path in FOLDER.rglob("*.yaml") if path.name != "kustomization.yaml")


def validated(text: str, release: str) -> list[dict[str, Any]]:
    """The resources, asserted to match their schemas without unknown fields."""
    program = (
        "import json, sys, yaml, kubernetes_validate\n"
        "resources = [each for each in yaml.safe_load_all(sys.stdin) if each]\n"
        f"for each in resources: kubernetes_validate.validate(each, {release!r}, strict=True)\n"
        "print(json.dumps(resources))"
    )
    environment = {**os.environ, "PYTHONPATH": str(kubernetes_schemas.folder())}
    run = [sys.executable, "-c", program]
    done = subprocess.run(run, input=text, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    resources: list[dict[str, Any]] = json.loads(done.stdout)
    return resources


def resource(kind: str, name: str = "tidelog") -> dict[str, Any]:
    """The resource of that kind and name from the files."""
    for path in files():
        for found in yaml.safe_load_all(path.read_text()):
            if (found["kind"], found["metadata"]["name"]) == (kind, name):
                loaded: dict[str, Any] = found
                return loaded
    raise AssertionError(f"no {kind} {name}")


@pytest.mark.parametrize("release", RELEASES)
def test_every_resource_fits_its_schema(release: str) -> None:
    text = "\n---\n".join(path.read_text() for path in files())
    kinds = [each["kind"] for each in validated(text, release)]
    wanted = [*["PodDisruptionBudget"] * 2, *["Service"] * 3, "ServiceAccount", *["StatefulSet"] * 2]
    assert sorted(kinds) == wanted


def test_a_field_that_does_not_exist_is_noticed() -> None:
    wrong = (FOLDER / "base" / "statefulset.yaml").read_text().replace("volumeMounts:", "volumeMount:")
    with pytest.raises(AssertionError, match="volumeMount"):
        validated(wrong, RELEASES[-1])


def test_kustomizations_name_files_that_are_there() -> None:
    found = list(FOLDER.rglob("kustomization.yaml"))
    assert found
    for path in found:
        loaded = yaml.safe_load(path.read_text())
        named = [*loaded["resources"], *(f for each in loaded.get("configMapGenerator", ()) for f in each["files"])]
        assert all((path.parent / name).exists() for name in named)
        rest = {file.name for file in path.parent.iterdir() if file.is_file()} - {"kustomization.yaml"}
        assert rest <= set(named)


def test_brokers_of_further_pods_follow_the_controller_of_the_first() -> None:
    """The pods differ from the single node in their names and in the settings that make them brokers of its cluster."""
    first, brokers = (resource("StatefulSet", name)["spec"] for name in ("tidelog", "tidelog-broker"))
    (container,) = brokers["template"]["spec"]["containers"]
    pod = {"POD_NAME": "tidelog-broker-1", "POD_NAMESPACE": "logs", "POD_INDEX": "1"}
    environment = {
        each["name"]: re.sub(r"\$\((\w+)\)", lambda found: pod[found[1]], each["value"])
        for each in container["env"]
        if "value" in each
    }
    settings = load_settings({}, config_file=FOLDER / "base" / "node.toml", environ=environment)
    assert settings.node_id == 101
    advertised = listeners_of(settings).advertised[0]
    assert advertised == Endpoint("INSIDE", f"{pod['POD_NAME']}.{brokers['serviceName']}.logs.svc", 9092)
    patches = yaml.safe_load((FOLDER / "cluster" / "kustomization.yaml").read_text())["patches"]
    added = {patch["target"]["kind"]: [each["value"] for each in yaml.safe_load(patch["patch"])] for patch in patches}
    variable, port = added["StatefulSet"]
    listener = load_settings({}, environ={variable["name"]: variable["value"]}).controller_listener
    assert listener is not None
    number = host_and_port(listener)[1]
    assert settings.controller == f"tidelog-0.{first['serviceName']}.logs.svc:{number}"
    assert (port["containerPort"], added["Service"][1]["targetPort"]) == (number, port["name"])
    changed = ("name", "env")
    for key, value in first["template"]["spec"]["containers"][0].items():
        assert key in changed or container[key] == value, key
    known = {each["name"] for each in first["template"]["spec"]["containers"][0]["env"]}
    names = {each["name"] for each in container["env"]}
    assert names - known == {"POD_INDEX", "TIDELOG_NODE_ID", "TIDELOG_ROLES", "TIDELOG_CONTROLLER"} and known <= names
    labels = brokers["selector"]["matchLabels"]
    assert labels == brokers["template"]["metadata"]["labels"] != first["selector"]["matchLabels"]
    for kind in ("Service", "PodDisruptionBudget"):
        selector = resource(kind, "tidelog-broker")["spec"]["selector"]
        assert selector.get("matchLabels", selector) == labels


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl, which builds kustomizations")
@pytest.mark.parametrize(("folder", "services"), [("base", ["tidelog"]), ("outside", ["tidelog", "tidelog-outside"])])
def test_kustomize_builds_them(folder: str, services: list[str]) -> None:
    built = subprocess.run(["kubectl", "kustomize", FOLDER / folder], capture_output=True, text=True, check=True).stdout
    resources = validated(built, RELEASES[-1])
    assert [each["metadata"]["name"] for each in resources if each["kind"] == "Service"] == services
    selectors = [each["spec"]["selector"] for each in resources if "selector" in each.get("spec", {})]
    labels = {"app.kubernetes.io/name": "tidelog"}
    assert all(each.get("matchLabels", each) == labels for each in selectors) and len(selectors) == len(services) + 2
    (stateful,) = [each for each in resources if each["kind"] == "StatefulSet"]
    environment = stateful["spec"]["template"]["spec"]["containers"][0]["env"]
    seen: set[str] = set()
    for variable in environment:
        # Kubernetes substitutes only variables defined above; any other reference stays as written.
        assert set(re.findall(r"\$\((\w+)\)", variable.get("value", ""))) <= seen
        seen.add(variable["name"])
    advertised = environment[-1]
    assert (advertised["name"], "logs.example.com" in advertised["value"]) == (
        "TIDELOG_ADVERTISED_LISTENERS",
        folder == "outside",
    )


def test_the_node_accepts_its_settings_and_listens_where_services_point() -> None:
    pod = resource("StatefulSet")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    written = {each["name"]: each.get("value") for each in container["env"]}
    told = re.sub(r"\$\((\w+)\)", lambda found: POD[found[1]], written["TIDELOG_ADVERTISED_LISTENERS"])
    settings = load_settings(
        {}, config_file=FOLDER / "base" / "node.toml", environ={"TIDELOG_ADVERTISED_LISTENERS": told}
    )
    listeners = listeners_of(settings)
    inside = resource("Service")["metadata"]["name"]
    assert listeners.advertised[0] == Endpoint("INSIDE", f"tidelog-0.{inside}.logs.svc", 9092)
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    bound = {each.listener.lower(): each.port for each in listeners.bound}
    bound["grpc"], bound["http"] = host_and_port(settings.grpc_listener)[1], host_and_port(settings.http_listener)[1]
    assert ports == bound
    for name in ("tidelog", "tidelog-outside"):
        for port in resource("Service", name)["spec"]["ports"]:
            assert ports[port["targetPort"]] == port["port"]
    assert all(not host for host in (each.host for each in listeners.bound))
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert settings.data_dir.is_relative_to(mounts["data"]) and settings.data_dir != Path(mounts["data"])
    assert container["args"] == ["serve", "--config", f"{mounts['settings']}/node.toml"]


def test_probes_request_served_paths() -> None:
    (container,) = resource("StatefulSet")["spec"]["template"]["spec"]["containers"]
    paths = {kind: container[kind]["httpGet"]["path"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert paths == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}


def test_node_toml_has_the_values_to_replace_and_no_secrets() -> None:
    loaded = tomllib.loads((FOLDER / "base" / "node.toml").read_text())
    assert loaded["store"] == "s3://BUCKET/tidelog"
