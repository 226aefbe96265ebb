"""Order of precedence: flag, TIDELOG_* variable, --config file, default."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.settings.node_settings import NodeSettings, is_service_link, load_settings
from storage_tiers.errors import InvalidConfig


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "node.toml"
    path.write_text(
        'grpc_listener = ":1000"\nnode_id = 7\n[broker]\n"log.retention.ms" = 5\n"auto.create.topics.enable" = false\n'
    )
    return path


def test_each_source_hides_the_ones_below_it(config_file: Path) -> None:
    environ = {"TIDELOG_GRPC_LISTENER": ":2000", "TIDELOG_STORE": "memory://", "HOME": "/root"}
    settings = load_settings({"grpc_listener": ":3000", "store": None}, config_file=config_file, environ=environ)
    assert (settings.grpc_listener, settings.store, settings.node_id) == (":3000", "memory://", 7)
    assert settings.listeners == "PLAINTEXT://127.0.0.1:9092"
    assert load_settings({}, config_file=config_file, environ=environ).grpc_listener == ":2000"
    assert load_settings({}, config_file=config_file, environ={}).grpc_listener == ":1000"
    assert load_settings({}, environ={}).grpc_listener == "127.0.0.1:9093"
    assert load_settings({}, environ={"TIDELOG_LOG_FORMAT": "json"}).log_format == "json"


def test_broker_configs_merge_by_key(config_file: Path) -> None:
    environ = {"TIDELOG_BROKER__LOG_RETENTION_MS": "6", "TIDELOG_BROKER__NUM_PARTITIONS": "3"}
    settings = load_settings({"broker": {"num.partitions": "4"}}, config_file=config_file, environ=environ)
    assert settings.broker == {
        "log.retention.ms": "6",
        "auto.create.topics.enable": "false",
        "num.partitions": "4",
    }


def test_names_of_configs_need_no_quotes_and_lists_may_be_lists(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text(
        '[broker]\nlog.retention.hours = 72\nlog.cleanup.policy = ["compact", "delete"]\n'
        'compression.type = "gzip"\nauto.create.topics.enable = true\n[broker.log.roll]\nms = 5\n'
    )
    assert load_settings({}, config_file=path, environ={}).broker == {
        "log.retention.hours": "72",
        "log.cleanup.policy": "compact,delete",
        "compression.type": "gzip",
        "auto.create.topics.enable": "true",
        "log.roll.ms": "5",
    }


def service_links(service: str, port: str, url: str) -> dict[str, str]:
    """The variables that a kubelet gives every pod for a Service of two ports, named as `getServiceEnvVars` names them."""
    scheme, address = url.split("://")
    host, number = address.split(":")
    one = f"{service}_PORT_{number}_{scheme.upper()}"
    return {
        f"{service}_SERVICE_HOST": host,
        f"{service}_SERVICE_PORT": number,
        f"{service}_SERVICE_PORT_{port}": number,
        f"{service}_PORT": url,
        one: url,
        f"{one}_PROTO": scheme,
        f"{one}_PORT": number,
        f"{one}_ADDR": host,
    }


@pytest.mark.parametrize("service", ["TIDELOG", "TIDELOG_HTTP", "TIDELOG_GRPC", "TIDELOG_BROKER", "TIDELOG_BROKER__0"])
@pytest.mark.parametrize("url", ["tcp://10.0.0.7:9092", "udp://10.0.0.7:53", "sctp://10.0.0.7:9092"])
def test_kubernetes_service_variables_are_not_settings(service: str, url: str) -> None:
    links = service_links(service, "KAFKA_2", url)
    assert load_settings({}, environ=links) == NodeSettings()
    settings = load_settings({}, environ={**links, "TIDELOG_NODE_ID": "5", "TIDELOG_BROKER__NUM_PARTITIONS": "3"})
    assert (settings.node_id, settings.broker) == (5, {"num.partitions": "3"})


def test_no_setting_is_called_as_a_service_link_is() -> None:
    assert [name for name in NodeSettings.model_fields if is_service_link(f"TIDELOG_{name.upper()}", "1")] == []


def test_variables_of_our_other_programs_are_not_settings() -> None:
    others = {"TIDELOG_READER": "mine", "TIDELOG_FAULT_SEED": "7"}
    others |= {"TIDELOG_BOOTSTRAP_SERVER": "127.0.0.1:9092", "TIDELOG_PROFILE": "prod"}
    assert load_settings({}, environ=others) == NodeSettings()


@pytest.mark.parametrize(
    ("flags", "environ", "complaint"),
    [
        (
            {},
            {"TIDELOG_LISTNERS": "1"},
            r"the environment: unknown setting 'listners' \(TIDELOG_LISTNERS\), did you mean 'listeners'\? Known are adv",
        ),
        ({}, {"TIDELOG_FAULT_SEEDS": "1"}, "the environment: unknown setting 'fault_seeds'"),
        ({}, {"TIDELOG_SERVICE": "1"}, "the environment: unknown setting 'service'"),
        ({}, {"TIDELOG_SERVICE_HOSTS": "1"}, "the environment: unknown setting 'service_hosts'"),
        ({}, {"TIDELOG_PORT": "9092"}, "the environment: unknown setting 'port'"),
        ({}, {"TIDELOG_NODE_ID": "many"}, "the environment: node_id: .*integer"),
        ({"http_listener": "h:70000"}, {}, "the command line: http_listener: .*HOST:PORT"),
        ({"grpc_listener": "nowhere"}, {}, "the command line: grpc_listener: .*HOST:PORT"),
        ({"log_level": "LOUD"}, {}, "one of DEBUG"),
        ({}, {"TIDELOG_LOG_FORMAT": "xml"}, "the environment: log_format: .*'text' or 'json'"),
    ],
)
def test_bad_values_name_their_source(flags: dict[str, object], environ: dict[str, str], complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint):
        load_settings(flags, environ=environ)


@pytest.mark.parametrize(
    ("line", "setting"),
    [
        ('listener.security.protocol.map = "A:PLAINTEXT"', "listener_security_protocol_map"),
        ('"listener.security.protocol.map" = "A:PLAINTEXT"', "listener_security_protocol_map"),
        ('advertised.listeners = "A://h:1"', "advertised_listeners"),
    ],
)
def test_kafkas_name_of_a_listener_setting_is_answered_with_its_name_here(
    tmp_path: Path, line: str, setting: str
) -> None:
    (tmp_path / "node.toml").write_text(line)
    with pytest.raises(InvalidConfig, match=rf"unknown setting .*, did you mean '{setting}'\?"):
        load_settings({}, config_file=tmp_path / "node.toml", environ={})


@pytest.mark.parametrize("line", ["log.retention.hours = 3", '"log.retention.hours" = 3', '"broker.rack" = "a"'])
def test_a_broker_config_beside_the_settings_is_answered_with_its_place(tmp_path: Path, line: str) -> None:
    (tmp_path / "node.toml").write_text(line)
    said = r"toml: '(log.retention.hours|broker.rack)' is a broker config and not .*: put it into the table \[broker\]"
    with pytest.raises(InvalidConfig, match=said):
        load_settings({}, config_file=tmp_path / "node.toml", environ={})
    (tmp_path / "node.toml").write_text(f"[broker]\n{line}")
    assert load_settings({}, config_file=tmp_path / "node.toml", environ={}).broker


def test_a_variable_of_a_broker_config_is_answered_with_the_name_that_it_needs() -> None:
    with pytest.raises(InvalidConfig, match=r"is a broker config .*: name the variable TIDELOG_BROKER__NUM_PARTITIONS"):
        load_settings({}, environ={"TIDELOG_NUM_PARTITIONS": "6"})
    assert load_settings({}, environ={"TIDELOG_BROKER__NUM_PARTITIONS": "6"}).broker == {"num.partitions": "6"}


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"cannot read .*missing\.toml"):
        load_settings({}, config_file=tmp_path / "missing.toml", environ={})
    broken = tmp_path / "broken.toml"
    broken.write_text("port = = 1")
    with pytest.raises(InvalidConfig, match="is not TOML"):
        load_settings({}, config_file=broken, environ={})
    broken.write_bytes(b"\xff\xfep\x00")
    with pytest.raises(InvalidConfig, match=r"is not TOML.*UTF-8"):
        load_settings({}, config_file=broken, environ={})
