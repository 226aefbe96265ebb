"""A broker that misbehaves at the listener of a shared tier process, or in its session, harms no other broker."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from pathlib import Path

import pytest

from storage_tiers.clock import SystemClock
from storage_tiers.cold.process import server as server_module
from storage_tiers.cold.process import shared_work as work_module
from storage_tiers.cold.process.operations import Stats
from storage_tiers.cold.process.protocol import MAX_QUESTION_BYTES, Ask, Reply, encode, read_frame
from storage_tiers.cold.process.server import MAX_SESSIONS_OF_ONE
from storage_tiers.cold.process.settings import TierSettings
from storage_tiers.cold.process.shared_work import MAX_STORES, SharedWork
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.cold.stores.port import ObjectStore
from storage_tiers.errors import StoreRefused, TierUnavailable
from storage_tiers.session_listener import (
    READ_BYTES,
    READS_A_TURN,
    accepted,
    make_listener,
    request_session,
    waiting_at,
)
from tests.storage_tiers.tier.downloaded import BYTES, chunk
from tests.storage_tiers.tier.shared_process import Raw, house, raw
from tests.storage_tiers.tier.support import broker, until


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def ended(sock: socket.socket) -> None:
    """Returns once the process has closed its end."""
    sock.setblocking(False)
    try:
        while await asyncio.get_running_loop().sock_recv(sock, 1 << 16):
            pass
    except ConnectionResetError:
        pass


async def test_descriptors_that_are_no_session_are_closed_and_ignored(tmp_path: Path) -> None:
    async with house() as at, broker(tmp_path, launcher=at.launcher) as one:
        await at.store.put("a", BYTES)
        at.start()
        await one.client.ask(chunk())
        before = open_descriptors()
        stream, other = socket.socketpair()
        datagram, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        internet = socket.socket()
        with open(os.devnull) as file, stream, other, datagram, _, internet:
            null, unix, udp, tcp = (each.fileno() for each in (file, stream, datagram, internet))
            for fds in ([null, null], [unix, null], [null, unix], [unix], [unix, udp], [tcp, unix]):
                socket.send_fds(at.launcher._listener, [b"k"], fds)
            await until(lambda: waiting_at(at.inside) == (b"", 0))
            await one.client.ask(chunk())
        assert open_descriptors() == before
        await one.client.close()
        await at.left()


def test_a_turn_of_the_listener_takes_few_reads() -> None:
    inside, outside = make_listener()
    with inside, outside:
        for _ in range(2 * READS_A_TURN):
            ours, theirs = socket.socketpair()
            with ours, theirs:
                request_session(outside, ours, theirs)
        for _ in range(2):
            found = list(accepted(inside))
            assert {each.pid for each in found} == {os.getpid()}
            assert len(found) == READS_A_TURN
            for each in found:
                each.close()
        assert list(accepted(inside)) == []
        flood = outside.send(bytes(READS_A_TURN * READ_BYTES))
        assert flood > 2 * READS_A_TURN
        assert waiting_at(inside) == (bytes(8), flood)
        assert list(accepted(inside)) == []
        assert waiting_at(inside) == (b"", 0), "one turn reads far more than a byte at a time"


async def test_a_full_lifeline_does_not_block_the_process(tmp_path: Path) -> None:
    async with house() as at, broker(tmp_path, launcher=at.launcher) as one:
        await at.store.put("a", BYTES)
        ours, theirs = socket.socketpair()
        near, far = socket.socketpair()
        with ours, near:
            with theirs, far:
                far.setblocking(False)
                with pytest.raises(BlockingIOError):
                    while True:
                        far.send(bytes(1 << 16))
                far.setblocking(True)
                request_session(at.launcher._listener, theirs, far)
                (session,) = accepted(at.inside)
                assert not os.get_blocking(session.lifeline.fileno()), "otherwise the rest of this test would hang"
                far.setblocking(True)
                request_session(at.launcher._listener, theirs, far)
                session.close()
            at.start()
            await one.client.ask(chunk())
            await ended(ours)


async def test_a_broker_has_few_sessions_at_a_time(tmp_path: Path) -> None:
    async with house() as at:
        at.start()
        held = [await raw(at, tmp_path) for _ in range(MAX_SESSIONS_OF_ONE)]
        await answered(held[-1])
        for _ in range(3):
            await ended((await at.launcher.launch()).socket)
        for each in held:
            await answered(each)
        held.pop().sock.close()
        assert at.server._shared.sessions >= MAX_SESSIONS_OF_ONE - 1
        await until(lambda: at.server._shared.sessions == MAX_SESSIONS_OF_ONE - 1)
        held.append(await raw(at, tmp_path))
        await answered(held[-1])
        for each in held:
            each.sock.close()
        await at.left()


async def answered(session: Raw) -> None:
    """Requests the counters, and returns once they have arrived."""
    reader, writer = await asyncio.open_unix_connection(sock=session.sock.dup())
    await session.send(encode(Ask(1, Stats())))
    assert isinstance(await read_frame(reader), Reply)
    writer.close()


@pytest.mark.parametrize("said", [b"", b"\0\0\0\x09{"])
async def test_a_session_that_is_not_configured_ends(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "FIRST_FRAME_S", 0.05)
    async with house() as at:
        at.start()
        silent = await at.launcher.launch()
        silent.socket.send(said)
        await ended(silent.socket)
        await at.left()


async def test_a_stop_ends_sessions_that_are_not_configured() -> None:
    async with house() as at:
        at.start()
        silent = await at.launcher.launch()
        await until(lambda: silent.handle.process_id is not None)
        at.server.stop()
        await ended(silent.socket)
        await at.left()


async def test_a_request_after_a_stop_waits_for_the_next_process(tmp_path: Path) -> None:
    async with house() as at:
        at.start()
        held = await raw(at, tmp_path)
        await answered(held)
        at.server.stop()
        await at.launcher.launch()
        await at.left()
        assert waiting_at(at.inside)[1]
        held.sock.close()


async def test_a_large_question_ends_its_session_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "FIRST_FRAME_S", 3600.0)
    async with house() as at, broker(tmp_path, launcher=at.launcher) as one:
        await at.store.put("a", BYTES)
        at.start()
        await one.client.ask(chunk())
        for configured in (True, False):
            large = await raw(at, tmp_path) if configured else Raw((await at.launcher.launch()).socket)
            await large.send(struct.pack(">I", MAX_QUESTION_BYTES + 1))
            await ended(large.sock)
        await one.client.ask(chunk())
        assert one.client.stats.starts == 1


async def test_messages_about_an_idle_session_keep_a_pace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "LEAST_IDLE_S", 3600.0)
    async with house() as at:
        at.start()
        hasty = await raw(at, tmp_path, TierSettings(idle_s=1e-9))
        for _ in range(20):
            await answered(hasty)
        hasty.sock.close()


# --- stores -----------------------------------------------------------------------------------------------------------
def location(number: int) -> StoreLocation:
    return StoreLocation.parse(f"memory://{number}")


async def test_a_store_that_does_not_answer_delays_no_other() -> None:
    gate, failures = asyncio.Event(), 1

    async def open_store(where: StoreLocation) -> ObjectStore:
        nonlocal failures
        if where == location(1):
            await gate.wait()
            if failures:
                failures -= 1
                raise StoreRefused("no such bucket")
        return MemoryStore(SystemClock())

    shared = SharedWork(open_store)
    two = await shared.store(location(2))
    waiting = [asyncio.create_task(shared.store(location(1))) for _ in range(2)]
    async with asyncio.timeout(60):
        assert await shared.store(location(2)) is two
        assert await shared.store(location(3)) is not two
        gate.set()
        for each in waiting:
            with pytest.raises(StoreRefused):
                await each
        assert await shared.store(location(1)) is await shared.store(location(1))
        await shared.close()


async def test_a_caller_that_leaves_does_not_end_the_opening_of_a_store() -> None:
    gate = asyncio.Event()

    async def open_store(_: StoreLocation) -> ObjectStore:
        await gate.wait()
        return MemoryStore(SystemClock())

    shared = SharedWork(open_store)
    one, two = (asyncio.create_task(shared.store(location(1))) for _ in range(2))
    await asyncio.sleep(0)
    one.cancel()
    gate.set()
    async with asyncio.timeout(60):
        assert await two is await shared.store(location(1))
        hanging = asyncio.create_task(shared.store(location(2)))
        gate.clear()
        await asyncio.sleep(0)
        await shared.close()
        await asyncio.gather(hanging, return_exceptions=True)


async def test_a_store_that_never_opens_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_module, "OPEN_S", 0.01)
    tried = 0

    async def open_store(_: StoreLocation) -> ObjectStore:
        nonlocal tried
        tried += 1
        if tried == 1:
            await asyncio.Event().wait()
        return MemoryStore(SystemClock())

    shared = SharedWork(open_store)
    with pytest.raises(TierUnavailable, match="cannot be opened within"):
        await shared.store(location(1))
    assert await shared.store(location(1)) is not None
    await shared.close()


async def test_a_process_serves_few_stores() -> None:
    async def open_store(_: StoreLocation) -> ObjectStore:
        return MemoryStore(SystemClock())

    shared = SharedWork(open_store)
    found = [await shared.store(location(number)) for number in range(MAX_STORES)]
    with pytest.raises(TierUnavailable, match=f"serves {MAX_STORES} other stores already"):
        await shared.store(location(MAX_STORES))
    assert [await shared.store(location(number)) for number in range(MAX_STORES)] == found
    await shared.close()
