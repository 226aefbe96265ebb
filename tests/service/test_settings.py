"""Order of precedence: flag, TIDELOG_* variable, --config file, default."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.settings import load_settings
from storage_tiers.errors import InvalidConfig


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "node.toml"
    path.write_text('port = 1000\nnode_id = 7\n[broker]\n"log.retention.ms" = 5\n"auto.create.topics.enable" = false\n')
    return path


def test_each_source_hides_the_ones_below_it(config_file: Path) -> None:
    environ = {"TIDELOG_PORT": "2000", "TIDELOG_STORE": "memory://", "HOME": "/root"}
    settings = load_settings({"port": 3000, "store": None}, config_file=config_file, environ=environ)
    assert (settings.port, settings.store, settings.node_id) == (3000, "memory://", 7)
    assert settings.listen == "127.0.0.1"
    assert load_settings({}, config_file=config_file, environ=environ).port == 2000
    assert load_settings({}, config_file=config_file, environ={}).port == 1000
    assert load_settings({}, environ={}).port == 9092
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


@pytest.mark.parametrize(
    ("flags", "environ", "complaint"),
    [
        ({}, {"TIDELOG_PROT": "1"}, "the environment: unknown setting 'prot'"),
        ({}, {"TIDELOG_PORT": "many"}, "the environment: port: .*integer"),
        ({"port": 70000}, {}, "the command line: port: .*65535"),
        ({"advertise": "nowhere"}, {}, "the command line: advertise: .*HOST:PORT"),
        ({"log_level": "LOUD"}, {}, "one of DEBUG"),
        ({}, {"TIDELOG_LOG_FORMAT": "xml"}, "the environment: log_format: .*'text' or 'json'"),
    ],
)
def test_bad_values_name_their_source(flags: dict[str, object], environ: dict[str, str], complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint):
        load_settings(flags, environ=environ)


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
