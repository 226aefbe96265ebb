"""The compose file: its mounts exist, its variables are settings, its services find each other, and its node starts on its
versitygw, in processes instead of containers. promtool checks the settings of Prometheus."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka.admin import AdminClient

from service.configs.listeners import host_and_port
from service.settings.derived import listeners_of
from service.settings.node_settings import NodeSettings, load_settings
from service.supervisor.plan import Machine, plan
from tests.faults.clients import until
from tests.packaging.test_alerts import RULES
from tests.support import s3_servers
from tests.support.node import ROOT, Node
from tests.support.ports import consecutive_ports
from tests.support.promtool import promtool

COMPOSE = ROOT / "packaging" / "compose.yaml"
IMAGE_SETTINGS = ROOT / "packaging" / "docker" / "node.toml"
LOADED: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
SERVICES: dict[str, dict[str, Any]] = LOADED["services"]


def node_settings(**other: str) -> NodeSettings:
    """The node's settings in the container."""
    environment = {**SERVICES["tidelog"]["environment"], **other}
    return load_settings({}, config_file=IMAGE_SETTINGS, environ=environment)


def published_ports() -> set[int]:
    (published,) = SERVICES["tidelog"]["ports"]
    _, outer, inner = published.split(":")
    assert outer == inner
    first, last = map(int, inner.split("-"))
    return set(range(first, last + 1))


def test_mounted_files_and_awaited_services_exist() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in LOADED["volumes"] or (COMPOSE.parent / source).exists(), volume
        assert set(service.get("depends_on", ())) <= set(SERVICES)
    build = SERVICES["tidelog"]["build"]
    assert (COMPOSE.parent / build["context"] / build["dockerfile"]).exists()


def test_every_service_leads_to_where_something_listens() -> None:
    settings = node_settings()
    bound = {each.listener: each.port for each in listeners_of(settings).bound}
    assert bound == {"OUTSIDE": 9092, "INSIDE": 9192}
    published = published_ports()
    assert {9092, host_and_port(settings.grpc_listener)[1], host_and_port(settings.http_listener)[1]} <= published
    ports = {each.listener: each.port for each in listeners_of(settings).bound}
    for broker in plan(settings, int(settings.brokers), Machine("box", "127.0.0.1:40000", ports)):
        listeners = listeners_of(broker.settings)
        outside = {each.port for each in (*listeners.bound, *listeners.advertised) if each.listener == "OUTSIDE"}
        assert len(outside) == 1
        assert outside | {host_and_port(broker.settings.grpc_listener)[1]} <= published
        assert listeners.advertised[0].host == "127.0.0.1"
    scraped = yaml.safe_load((RULES.parent / "prometheus.yaml").read_text())["scrape_configs"][0]["static_configs"]
    assert scraped == [{"targets": [f"tidelog:{host_and_port(settings.http_listener)[1]}"]}]
    endpoint = str(settings.s3_endpoint).removeprefix("http://").split(":")
    assert endpoint[0] in SERVICES and f":{endpoint[1]}" in SERVICES["versitygw"]["command"]
    source = yaml.safe_load((COMPOSE.parent / "docker" / "datasource.yaml").read_text())["datasources"][0]
    assert source["url"] == "http://prometheus:9090"
    dashboards = yaml.safe_load((ROOT / "grafana" / "provisioning" / "datasources" / "tidelog.yaml").read_text())
    assert source["uid"] == dashboards["datasources"][0]["uid"]


def test_prometheus_reads_its_settings() -> None:
    path = RULES.parent / "prometheus.yaml"
    done = subprocess.run([promtool(), "check", "config", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_its_node_starts_on_its_store(tmp_path: Path, versitygw: s3_servers.S3Server) -> None:
    written = SERVICES["tidelog"]["environment"]
    outside, grpc, http, *_ = consecutive_ports(len(published_ports()))
    inside, *_ = consecutive_ports(3)
    replaced = {
        "http://versitygw:7070": versitygw.endpoint,
        "s3://tidelog/": f"s3://{s3_servers.BUCKET}/compose-",
        "//:9192": f"//:{inside}",
        "//tidelog:9192": f"//localhost:{inside}",
        ":9092": f":{outside}",
    }
    environment = {}
    for name, value in written.items():
        for before, after in replaced.items():
            value = value.replace(before, after)
        environment[name] = value
    environment.update(AWS_ACCESS_KEY_ID=s3_servers.ACCESS_KEY, AWS_SECRET_ACCESS_KEY=s3_servers.SECRET_KEY)

    class Container(Node):
        def command(self) -> list[str]:
            given = super().command()
            config = ["--config", str(IMAGE_SETTINGS), "--data-dir", str(self.data_dir)]
            return [*given[:4], *config, *given[given.index("--grpc-listener") :]]

    node = Container(tmp_path, environment=environment)
    node.kafka, node.grpc, node.http = (f"127.0.0.1:{port}" for port in (outside, grpc, http))
    with node:
        for address in (f"localhost:{inside}", f"127.0.0.1:{outside}"):
            admin = AdminClient({"bootstrap.servers": address})
            until(lambda admin=admin: len(admin.list_topics(timeout=60).brokers) == 2, "both brokers are there")  # type: ignore[misc]
            found = admin.list_topics(timeout=60).brokers.values()
            assert {each.host for each in found} == {address.partition(":")[0]}
        assert "store=s3://" in node.output()
        assert node.stop() == 0
