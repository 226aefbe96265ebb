"""Starts that a node refuses: the error is one sentence that says what to do, and no files are left behind."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.serve.app import run
from service.settings.node_settings import NodeSettings
from storage_tiers.errors import LogError
from storage_tiers.hot.checkpoints import CLEAN_SHUTDOWN

FREE = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "grpc_listener": "127.0.0.1:0",
    "http_listener": "127.0.0.1:0",
}


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"broker": {"foo": "1"}}, "foo"),
        ({"broker": {"log.segment.bytes": "many"}}, "log.segment.bytes"),
        ({"broker": {"tidelog.disk.watermark.slow": "0.9", "tidelog.disk.watermark.refuse": "0.5"}}, "watermark"),
        ({"broker": {"tidelog.tier.chunk.cache.bytes": "5"}}, "cache.bytes"),
        ({"store": "ftp://x"}, "ftp://x"),
        (
            {"listeners": "PLAINTEXT://0.0.0.0:0"},
            "clients cannot connect to 0.0.0.0; write PLAINTEXT://HOST:PORT",
        ),
        ({"listeners": "PLAINTEXT://host.invalid:0"}, "cannot listen on PLAINTEXT://host.invalid:0"),
        ({"grpc_listener": "host.invalid:0"}, "cannot listen on host.invalid:0 for gRPC"),
        ({"http_listener": "host.invalid:0"}, "cannot listen on host.invalid:0 for HTTP"),
    ],
    ids=str,
)
def test_bad_settings_leave_no_directory(tmp_path: Path, settings: dict[str, object], complaint: str) -> None:
    wanted = NodeSettings(**{**FREE, "data_dir": tmp_path / "data", "store": str(tmp_path / "store"), **settings})  # type: ignore[arg-type]
    with pytest.raises(LogError, match=complaint):
        run(wanted)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("listener", ["listeners", "http_listener", "grpc_listener"])
def test_a_port_in_use_is_named(tmp_path: Path, taken: int, listener: str) -> None:
    address = FREE[listener].replace(":0", f":{taken}")
    wanted = NodeSettings(**{**FREE, listener: address, "data_dir": tmp_path / "data", "store": "none"})  # type: ignore[arg-type]
    flag = f"--{listener.replace('_', '-')}"
    said = f"(?i)^cannot listen on .*:{taken} .*address already in use; stop the process using it, or choose another .*{flag}"
    with pytest.raises(LogError, match=said):
        run(wanted)
    assert not list(tmp_path.iterdir())


def test_wrong_listeners_are_named_before_a_port_in_use(tmp_path: Path, taken: int) -> None:
    settings = NodeSettings(
        data_dir=tmp_path / "node", store="none", listeners="INSIDE://:0", http_listener=f"127.0.0.1:{taken}"
    )
    with pytest.raises(LogError, match=r"add INSIDE:PLAINTEXT to listener\.security\.protocol\.map"):
        run(settings)


def test_a_start_that_fails_before_the_logs_leaves_them_clean(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / CLEAN_SHUTDOWN).write_text("{}")
    (data / "meta.properties").write_text("no properties")
    with pytest.raises(LogError, match=r"meta\.properties"):
        run(NodeSettings(**{**FREE, "data_dir": data, "store": "none"}))  # type: ignore[arg-type]
    assert (data / CLEAN_SHUTDOWN).exists()
