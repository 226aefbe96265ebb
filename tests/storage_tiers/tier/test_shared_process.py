"""A tier process that several brokers share: their sessions take turns, and none of them harms another."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from pathlib import Path

import pytest

from storage_tiers.cold.process.operations import Stats
from storage_tiers.cold.process.protocol import Ask, Frame, Idle, Reply, encode, read_frame
from storage_tiers.errors import TierUnavailable
from tests.storage_tiers.tier.downloaded import BYTES, chunk, files
from tests.storage_tiers.tier.shared_process import house, raw
from tests.storage_tiers.tier.support import PATIENT, broker, until


async def test_brokers_share_stores_and_have_their_own_counters_and_files(tmp_path: Path) -> None:
    async with (
        house() as at,
        broker(tmp_path / "1", launcher=at.launcher) as one,
        broker(tmp_path / "2", launcher=at.launcher) as two,
    ):
        await at.store.put("a", BYTES)
        asking = [asyncio.create_task(b.client.ask(chunk())) for b in (one, two, two)]
        await until(lambda: two.client.stats.asked["FetchChunk"] == 2)
        at.start()  # the brokers requested sessions before the process started
        assert {answer.size for answer in await asyncio.gather(*asking)} == {len(BYTES)}
        assert at.opened == 1
        assert (len(files(tmp_path / "1")), len(files(tmp_path / "2"))) == (1, 2)
        counted = [await b.client.refresh_counters() for b in (one, two)]
        assert [each and each.operations for each in counted] == [{"FetchChunk": 1}, {"FetchChunk": 2}]
        assert [each and each.bytes_downloaded for each in counted] == [len(BYTES), 2 * len(BYTES)]
        assert one.client.process_id == two.client.process_id is not None


async def test_a_session_ends_alone_and_the_last_one_ends_the_process(tmp_path: Path) -> None:
    async with house() as at, broker(tmp_path / "1", launcher=at.launcher) as one:
        await at.store.put("a", BYTES)
        at.start()
        async with broker(tmp_path / "2", launcher=at.launcher) as two:
            await two.client.ask(chunk())
            gate = at.store.hold(1, "get")
            asking = asyncio.create_task(two.client.ask(chunk()))
            await gate.reached.wait()
            await one.client.ask(chunk())
            began = time.monotonic()
            await two.client.close()
            assert time.monotonic() - began < 2, "the client does not wait for the process's end"
            with pytest.raises(TierUnavailable):
                await asking
        assert not [path for path in files(tmp_path / "2") if path.suffix == ".tmp"], "its downloads have ended"
        await one.client.ask(chunk())
        assert one.client.stats.starts == 1
        await one.client.close()
        await at.left()
        assert at.store.closed == 1


async def test_a_session_that_breaks_the_protocol_ends_alone(tmp_path: Path) -> None:
    async with house() as at, broker(tmp_path, launcher=at.launcher) as one:
        await at.store.put("a", BYTES)
        at.start()
        await one.client.ask(chunk())
        for said in (b"GET / HTTP/1.1\r\n\r\n", encode(Idle(await one.client.ask(Stats())))):
            stranger = await at.launcher.launch()
            stranger.socket.sendall(said)
            stranger.socket.setblocking(False)
            assert await asyncio.get_running_loop().sock_recv(stranger.socket, 1) == b""
            await stranger.handle.ended(60)
            stranger.socket.close()
        await one.client.ask(chunk())
        assert one.client.stats.starts == 1


async def test_a_request_without_sockets_is_ignored(tmp_path: Path) -> None:
    async with house() as at, broker(tmp_path, launcher=at.launcher) as one:
        await at.store.put("a", BYTES)
        at.start()
        await one.client.ask(chunk())
        at.launcher._listener.send(b"kkk")
        await one.client.close()
        await at.left()


async def test_a_flood_of_one_broker_delays_another_by_a_turn(tmp_path: Path) -> None:
    settings = dataclasses.replace(PATIENT, download_connections=1)
    async with (
        house() as at,
        broker(tmp_path / "1", launcher=at.launcher, settings=settings) as one,
        broker(tmp_path / "2", launcher=at.launcher, settings=settings) as two,
    ):
        for key in "abc":
            await at.store.put(key, BYTES)
        at.start()
        gate = at.store.hold(1, "get", "a")
        flood = [asyncio.create_task(one.client.ask(chunk("a"))) for _ in range(50)]
        await gate.reached.wait()
        await one.client.ask(Stats())
        asking = [asyncio.create_task(two.client.ask(chunk(key))) for key in "bc"]
        await two.client.ask(Stats())
        gate.open()
        await asyncio.gather(*asking)
        got = [key for operation, key in at.store.calls if operation == "get"]
        assert got[:5] == ["a", "a", "b", "a", "c"]
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)


async def test_nothing_is_read_from_a_broker_that_does_not_read(tmp_path: Path) -> None:
    """Such a broker delays no other broker. As soon as it reads, it gets all answers."""
    asks = 20_000
    async with house() as at, broker(tmp_path, launcher=at.launcher) as other:
        await at.store.put("a", BYTES)
        at.start()
        silent = await raw(at, tmp_path)
        flood = b"".join(encode(Ask(number, Stats())) for number in range(1, asks + 1))
        sending = asyncio.create_task(silent.send(flood))
        before = -1
        while before < silent.sent:
            before = silent.sent
            await other.client.ask(chunk())
            await asyncio.sleep(0.2)
        assert silent.sent < len(flood) / 2
        reader, writer = await asyncio.open_unix_connection(sock=silent.sock.dup())
        for number in range(1, asks + 1):
            assert await numbered(reader) == number
        await sending
        writer.close()
        silent.sock.close()


async def numbered(reader: asyncio.StreamReader) -> int:
    frame: Frame | None = None
    while not isinstance(frame, Reply):
        frame = await read_frame(reader)
        assert frame is not None
    return frame.number


async def test_a_stopped_broker_gets_few_messages_about_its_idle_session(tmp_path: Path) -> None:
    """Each unread message would take memory, for as long as the broker is stopped."""
    settings = dataclasses.replace(PATIENT, idle_s=0.00001)
    async with house() as at:
        at.start()
        silent = await raw(at, tmp_path, settings)
        reader, writer = await asyncio.open_unix_connection(sock=silent.sock.dup())
        assert isinstance(await read_frame(reader), Idle)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(1)
        unsent = [
            each.get_write_buffer_size()
            for each in transports()
            if each.get_extra_info("socket").fileno()
            not in (silent.sock.fileno(), writer.get_extra_info("socket").fileno())
        ]
        assert max(unsent) < 1024
        writer.close()
        silent.sock.close()


def transports() -> list[asyncio.WriteTransport]:
    """The open transports of this loop."""
    import gc

    found = [each for each in gc.get_objects() if type(each).__name__ == "_SelectorSocketTransport"]
    return [each for each in found if each._loop is asyncio.get_running_loop() and not each.is_closing()]


async def test_too_many_at_the_door_are_refused_for_now() -> None:
    async with house() as at:
        launched = []
        with pytest.raises(TierUnavailable, match="cannot be reached"):
            while True:
                launched.append(await at.launcher.launch())
        assert len(launched) > 64
        for each in launched:
            each.socket.close()
        at.start()
        await at.left()
        with contextlib.suppress(TimeoutError):
            await asyncio.gather(*(each.handle.ended(60) for each in launched))
