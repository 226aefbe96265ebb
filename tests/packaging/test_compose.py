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
from tests.packaging.test_alerts import RULES
from tests.support import s3_servers
from tests.support.node import ROOT, Node
from tests.support.ports import free_port
from tests.support.promtool import promtool

COMPOSE = ROOT / "packaging" / "compose.yaml"
IMAGE_SETTINGS = ROOT / "packaging" / "docker" / "node.toml"
LOADED: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
SERVICES: dict[str, dict[str, Any]] = LOADED["services"]


def node_settings(**other: str) -> NodeSettings:
    """The node's settings in the container."""
    environment = {**SERVICES["tidelog"]["environment"], **other}
    return load_settings({}, config_file=IMAGE_SETTINGS, environ=environment)


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
    assert bound == {"INSIDE": 9192, "OUTSIDE": 9092}
    published = {int(port.split(":")[2]) for port in SERVICES["tidelog"]["ports"]}
    assert published == {9092, host_and_port(settings.grpc_listener)[1], host_and_port(settings.http_listener)[1]}
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
    inside, outside = free_port(), free_port()
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

    with Container(tmp_path, environment=environment) as node:
        for address in (f"localhost:{inside}", f"127.0.0.1:{outside}"):
            (broker,) = AdminClient({"bootstrap.servers": address}).list_topics(timeout=60).brokers.values()
            assert str(broker).startswith(address)
        assert "store=s3://" in node.output()
        assert node.stop() == 0
