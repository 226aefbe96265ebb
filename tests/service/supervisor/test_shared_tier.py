"""The supervisor's tier process: when it starts, what it inherits, and when it is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from service.observability.exposition import Exposition
from service.supervisor import shared_tier as module
from service.supervisor.shared_tier import SharedTier
from storage_tiers.cold.process.launcher import Launched
from storage_tiers.cold.process.shared_launcher import SharedLauncher
from tests.support.processes import is_alive, state_of


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def watched(*keep_out: int) -> AsyncIterator[tuple[SharedTier, SharedLauncher]]:
    """A listener and its process; a task reaps the process as the supervisor does."""
    tier = SharedTier("text", keep_out)
    launcher = SharedLauncher(os.dup(tier.listener))

    async def reap() -> None:
        while True:
            await asyncio.sleep(0.01)
            if tier.pid is not None:
                pid, status = os.waitpid(tier.pid, os.WNOHANG)
                if pid:
                    tier.ended(pid, os.waitstatus_to_exitcode(status))

    reaping = asyncio.create_task(reap())
    tier.watch()
    try:
        yield tier, launcher
    finally:
        await tier.close()
        reaping.cancel()
        launcher._listener.close()


def metrics(tier: SharedTier) -> dict[str, float]:
    into = Exposition()
    tier.put_metrics(into)
    lines = b"".join(into.families()).decode().splitlines()
    return {line.split()[0]: float(line.split()[1]) for line in lines if not line.startswith("#")}


async def let_in(tier: SharedTier, launched: Launched) -> None:
    await until(lambda: launched.handle.process_id is not None)
    assert launched.handle.process_id == tier.pid


async def left(launched: Launched) -> None:
    launched.socket.close()
    await launched.handle.ended(60)


async def test_the_tier_process_runs_while_a_broker_has_a_session() -> None:
    with socket.create_server(("127.0.0.1", 0)) as bootstrap:
        bootstrap.set_inheritable(True)
        async with watched(bootstrap.fileno()) as (tier, launcher):
            assert metrics(tier)["tidelog_tier_process_starts_total"] == 0
            for start in (1, 2):
                one, two = await launcher.launch(), await launcher.launch()
                await let_in(tier, one)
                await let_in(tier, two)
                shown = metrics(tier)
                assert shown["tidelog_tier_process_running"] == 1
                assert shown["tidelog_tier_process_starts_total"] == start
                peak = shown["tidelog_tier_process_peak_resident_bytes"]
                assert peak >= shown["tidelog_tier_process_resident_bytes"] > 1 << 20
                sockets = [os.readlink(each) for each in Path(f"/proc/{tier.pid}/fd").iterdir()]
                for other in (bootstrap.fileno(), tier.listener):
                    assert f"socket:[{os.fstat(other).st_ino}]" not in sockets
                await left(one)
                assert tier.pid is not None
                await left(two)
                await until(lambda: tier.pid is None)
            shown = metrics(tier)
            assert shown["tidelog_tier_process_lost_total"] == shown["tidelog_tier_process_running"] == 0
            assert shown["tidelog_tier_process_peak_resident_bytes"] == peak


async def test_a_killed_tier_process_is_started_again_after_a_pause() -> None:
    async with watched() as (tier, launcher):
        for lost in (1, 2, 3):
            one = await launcher.launch()
            await let_in(tier, one)
            one.handle.kill()
            await left(one)
            await until(lambda: tier.pid is None)
            assert metrics(tier)["tidelog_tier_process_lost_total"] == lost
            assert tier._waiting is not None
            pause_s = tier._waiting.when() - asyncio.get_running_loop().time()
            assert pause_s <= 0.1 * 2 ** (lost - 1)


async def test_a_tier_process_that_lets_no_broker_in_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.05)
    monkeypatch.setattr(module, "STARTING_PATIENCE", 10_000)  # a busy machine starts the process slowly
    async with watched() as (tier, launcher):
        one = await launcher.launch()
        await let_in(tier, one)
        await until(lambda: tier._has_opened)
        assert one.handle.process_id is not None
        hung = one.handle.process_id
        os.kill(hung, signal.SIGSTOP)
        two = await launcher.launch()
        await until(lambda: two.handle.process_id not in (None, hung))
        assert not is_alive(hung)
        await left(one)
        await left(two)


async def test_a_tier_process_that_cannot_run_is_tried_again_with_growing_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with watched() as (tier, launcher):
        with monkeypatch.context() as broken:
            broken.setattr(sys, "executable", "/bin/false")
            one = await launcher.launch()
            await until(lambda: tier.lost == 3)
            broken.setattr(sys, "executable", "/nowhere")
            await until(lambda: tier._failures == 4)
        await let_in(tier, one)
        await left(one)


async def test_a_stopped_tier_process_is_killed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "END_S", 0.2)
    async with watched() as (tier, launcher):
        one = await launcher.launch()
        await let_in(tier, one)
        pid = tier.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        one.socket.close()
    assert not state_of(pid)


async def test_a_process_is_deaf_if_nothing_was_read_between_two_looks() -> None:
    """Bytes may wait at every look while a client floods the socket, although the process reads."""
    tier = SharedTier("text", ())
    inside, fd = tier._inside, tier._inside.fileno()

    def looked() -> int:
        tier._look()
        assert tier._looking is not None
        tier._looking.cancel()
        return tier._deaf

    with socket.socket(fileno=os.dup(tier.listener)) as outside:
        assert looked() == 0
        outside.send(b"12345678" * 100)
        assert [looked(), looked()] == [1, 2]
        outside.send(b"9" * 800)
        assert looked() == 3, "more came, and nothing was read"
        inside.recv(400)
        assert looked() == 0, "there is less"
        assert [looked(), looked()] == [1, 2]
        inside.recv(801)
        outside.send(bytes(2000))
        assert looked() == 0, "others are the first"
        assert looked() == 1
        inside.recv(10_000)
        assert looked() == 0
    await tier.close()
    assert not asyncio.get_running_loop().remove_reader(fd)


async def test_a_closed_listener_is_not_watched() -> None:
    """Another socket may have the closed listener's descriptor."""
    async with watched() as (tier, launcher):
        one = await launcher.launch()
        await let_in(tier, one)
        fd = tier._inside.fileno()
        one.socket.close()
    assert not asyncio.get_running_loop().remove_reader(fd)
