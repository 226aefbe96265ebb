"""How the process shares out the files that it may open, and the descriptors held in reserve for logs."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from grpc_api.limits import REFUSED_CONNECTIONS
from service.process.descriptors import FIXED, HTTP_CONNECTIONS, PER_PARTITION, RESERVED, Descriptors, shares
from storage_tiers.files import DescriptorReserve, OsFiles


def test_logs_come_first_and_connections_take_the_rest() -> None:
    found = shares(4096, partitions=100, max_connections=(1 << 31) - 1)
    logs = FIXED + RESERVED + 100 * PER_PARTITION
    assert found.http == HTTP_CONNECTIONS
    assert found.grpc == (4096 - logs) // 8 - REFUSED_CONNECTIONS
    assert found.connections == 4096 - logs - HTTP_CONNECTIONS - found.grpc - REFUSED_CONNECTIONS
    assert not found.few


@pytest.mark.parametrize("partitions", [0, 10, 10_000])
@pytest.mark.parametrize("limit", [256, 1024, 65_536])
def test_connections_never_take_more_than_is_free_nor_less_than_a_quarter(limit: int, partitions: int) -> None:
    found = shares(limit, partitions=partitions, max_connections=(1 << 31) - 1)
    free = limit - FIXED - RESERVED - PER_PARTITION * partitions
    assert min(found.connections, found.grpc, found.http) > 0
    assert found.connections + found.grpc + REFUSED_CONNECTIONS + found.http <= max(free, limit // 4)


def test_lower_configured_limits_apply() -> None:
    found = shares(4096, partitions=10, max_connections=7)
    assert found.connections == 7 and not found.few
    assert shares(65_536, partitions=10, max_connections=7, max_grpc=3).grpc == 3
    assert shares(1024, partitions=10, max_connections=5000).few


def test_a_file_is_opened_with_a_reserved_descriptor(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The shortage is real: the process may open no further file."""
    import resource

    caplog.set_level(logging.INFO)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserve = DescriptorReserve(2)
    reserve.fill()
    files = OsFiles(reserve)
    taken = max(map(int, os.listdir("/proc/self/fd"))) + 1
    others = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken + 8, hard))
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                others.append(os.open(os.devnull, os.O_RDONLY))
        opened = [files.open(str(tmp_path / "a"), create=True)]
        files.fsync_dir(str(tmp_path))
        opened.append(files.open(str(tmp_path / "b"), create=True))
        assert reserve.shortages >= 2 and reserve.left == 0
        with pytest.raises(OSError, match="Too many open files"):
            files.open(str(tmp_path / "c"), create=True)
        for fd in opened:
            files.close(fd)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in others:
            os.close(each)
    reserve.fill()
    assert reserve.left == 2
    reserve.close()


async def test_a_shortage_is_logged_when_it_begins_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    reserve = DescriptorReserve(2)
    watch = Descriptors(1024, reserve)
    await watch.tick()
    assert "descriptors" not in caplog.text
    for _ in range(2):
        assert reserve.release_one()
        await watch.tick()
    assert caplog.text.count("descriptors.short") == 1
    await watch.tick()
    assert caplog.text.count("descriptors.back") == 1
    assert watch.shortages == 2
    reserve.close()
