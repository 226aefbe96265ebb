"""The log cleaner's broker configs, altered to their edges on a running node with a log that is due."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_tiers.compaction.protocol import CleanerAnswer, KeepAlive, decode_answer
from storage_tiers.errors import InvalidRequest
from tests.service.broker.api.test_configs_act import alter
from tests.service.broker.background.cleaner.test_cleaning import (
    COMPACTED,
    EAGER,
    LOCAL,
    cleaned_files,
    cleaned_to,
    cleaning,
    closed,
    led,
    put,
    store,
)
from tests.service.broker.background.cleaner.test_cleaning_bucket import bucket_cleaned_to
from tests.service.broker.support import Running, running, until

BUFFER, RATE = "log_cleaner_dedupe_buffer_size", "log_cleaner_io_max_bytes_per_second"
LOAD = "log_cleaner_io_buffer_load_factor"


@pytest.mark.parametrize(
    "values",
    [
        {BUFFER: "1048577"},
        {BUFFER: str((1 << 63) - 1)},
        {BUFFER: "1048577", LOAD: "0"},
        {BUFFER: "1048577", LOAD: "-1"},
        {BUFFER: "1048577", LOAD: "1e-300"},
        {LOAD: "1"},
        {LOAD: "1e400"},
        {RATE: "-1"},
        {RATE: "1e400"},
        {"log_cleaner_backoff_ms": "0"},
        {"log_cleaner_threads": "127"},
    ],
    ids=lambda values: " ".join(f"{name}={value}" for name, value in values.items()),
)
async def test_a_log_is_cleaned_at_the_edges_of_kafkas_values(tmp_path: Path, values: dict[str, str]) -> None:
    async with running(tmp_path / "data", store(), broker=EAGER) as node:
        await alter(node, None, **values)
        await node.create("t", configs=LOCAL)
        await put(node, ("a", "1"), ("a", "2"), ("b", "1"))
        await closed(node)
        await until(lambda: cleaning(node).figures.done["local"].passes == 1)
        assert [each.offset for each in await node.read_all("t")] == [1, 2]
        assert not cleaning(node).uncleanable


async def test_a_rate_of_0_stops_the_cleaner_until_it_is_raised(tmp_path: Path) -> None:
    async with running(tmp_path / "data", store(), broker=EAGER) as node:
        await alter(node, None, **{RATE: "0"})
        await node.create("t", configs=LOCAL)
        await put(node, ("a", "1"), ("a", "2"))
        await closed(node)
        looked_ms = cleaning(node).figures.looked_ms
        await cleaning(node).tick()
        assert (cleaned_to(node), cleaning(node).figures.looked_ms) == (0, looked_ms)
        await alter(node, None, **{RATE: "1e9"})
        await until(lambda: cleaned_to(node) == 2)


@pytest.mark.parametrize("is_remote", [False, True], ids=["local", "bucket"])
async def test_a_pass_under_way_starts_again_with_the_new_rate(tmp_path: Path, is_remote: bool) -> None:
    async with running(tmp_path / "data", store(), broker=EAGER) as node:
        await slowly_cleaned(node, is_remote=is_remote)
        await alter(node, None, **{RATE: "1e9"})
        await until(lambda: bucket_cleaned_to(node) == 2 if is_remote else cleaned_to(node) == 3)
        assert [each.offset for each in await node.read_all("t")] == ([1, 2] if is_remote else [2])
        assert not cleaning(node).uncleanable


@pytest.mark.parametrize("is_remote", [False, True], ids=["local", "bucket"])
async def test_a_rate_of_0_ends_a_pass_under_way(tmp_path: Path, is_remote: bool) -> None:
    async with running(tmp_path / "data", store(), broker=EAGER) as node:
        await slowly_cleaned(node, is_remote=is_remote)
        await alter(node, None, **{RATE: "0"})
        await until(lambda: cleaning(node)._process._process is None)
        assert (cleaned_to(node), bucket_cleaned_to(node)) == (0, 0)
        assert not cleaned_files(led(node).log.hot)
        assert not cleaning(node).uncleanable


async def test_a_pass_under_way_ends_when_its_topic_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = list[CleanerAnswer]()

    def noted(line: bytes) -> CleanerAnswer:
        heard.append(decode_answer(line))
        return heard[-1]

    monkeypatch.setattr("service.broker.background.cleaner.cleaner_process.decode_answer", noted)
    async with running(tmp_path / "data", store(), broker=EAGER) as node:
        await slowly_cleaned(node, is_remote=False)
        await until(lambda: heard == [KeepAlive()])
        await node.core.topics.delete(["t"])
        await until(lambda: cleaning(node)._process._process is None)


async def slowly_cleaned(node: Running, *, is_remote: bool) -> None:
    """Topic t, whose cleaning has begun and takes longer than the test."""
    await alter(node, None, **{RATE: "0"})
    configs = {**COMPACTED, "local.retention.bytes": "1"} if is_remote else LOCAL
    await node.create("t", configs=configs)
    for value in ("1", "2", "3"):
        await put(node, ("a", value * 800))
        await (node.seal("t") if is_remote else closed(node))
    if is_remote:
        await node.evicted("t")
    await alter(node, None, **{RATE: "1"})
    await until(lambda: cleaning(node)._process._process is not None)


@pytest.mark.parametrize("values", [{BUFFER: "0"}, {BUFFER: "1048576"}, {"log_cleaner_threads": "0"}])
async def test_values_that_kafka_refuses_are_refused(tmp_path: Path, values: dict[str, str]) -> None:
    async with running(tmp_path / "data", store(), broker=EAGER) as node:
        with pytest.raises(InvalidRequest, match="cleaner thread"):
            await alter(node, None, **values)


async def test_a_buffer_of_0_that_an_earlier_version_stored_ends_nothing(tmp_path: Path) -> None:
    async with running(tmp_path / "data", store(), broker=EAGER) as node:
        policy, settings = cleaning(node)._policy, cleaning(node)._policy.settings
        cleaning(node)._policy = policy._replace(settings=lambda: settings()._replace(map_bytes=0))
        await node.create("t", configs=LOCAL)
        await put(node, ("a", "1"), ("a", "2"))
        await closed(node)
        await until(lambda: cleaning(node).figures.done["local"].passes == 1)
        assert [each.offset for each in await node.read_all("t")] == [1]
