"""The life cycle of the tier process: it starts on demand, ends when idle, and is restarted when lost."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from pathlib import Path

import pytest
import uvloop

from storage_tiers.cold.process.cluster_operations import Probe
from storage_tiers.cold.process.launcher import ExecLauncher, Launched
from storage_tiers.cold.process.operations import Claim, ReadyFile, Stats
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.cold.stores.port import ObjectStore
from storage_tiers.errors import (
    LogError,
    StoreRefused,
    TierUnavailable,
)
from tests.storage_tiers.cold.support import IDS, EagerClock
from tests.storage_tiers.tier.downloaded import BYTES, chunk, files
from tests.storage_tiers.tier.support import PATIENT, WRITER, broker, no_descriptors, until
from tests.support.clock import SeededRng
from tests.support.local_tier import LocalHandle, LocalLauncher


async def test_the_process_starts_with_the_first_question_and_ends_when_idle(tmp_path: Path) -> None:
    async with broker(tmp_path, settings=dataclasses.replace(PATIENT, idle_s=0.05)) as b:
        await b.store.put("a", BYTES)
        assert b.client.stats.starts == 0 and await b.client.refresh_counters() is None
        await b.client.ask(chunk())
        await until(lambda: not b.client.running)
        assert b.client.stats.lost == 0
        assert b.client.stats.counters is not None and b.client.stats.counters.operations == {"FetchChunk": 1}
        await b.client.ask(chunk())
        assert b.client.stats.starts == 2


async def test_the_process_is_not_idle_while_it_works(tmp_path: Path) -> None:
    async with broker(tmp_path, settings=dataclasses.replace(PATIENT, idle_s=0.02)) as b:
        await b.store.put("a", BYTES)
        gate = b.store.hold(1, "get")
        asking = asyncio.create_task(b.client.ask(chunk()))
        await gate.reached.wait()
        for _ in range(10):
            await asyncio.sleep(0.01)
            await b.client.refresh_counters()
        assert b.client.running
        gate.open()
        assert (await asking).size == len(BYTES)
        # A request for counters is not work: the process still ends.
        async with asyncio.timeout(60):
            while b.client.running:
                await b.client.refresh_counters()
                await asyncio.sleep(0.001)
        assert b.client.stats.starts == 1


async def test_many_questions_at_once_start_one_process(tmp_path: Path) -> None:
    async with broker(tmp_path) as b:
        await b.store.put("a", BYTES)
        await asyncio.gather(*(b.client.ask(chunk()) for _ in range(50)))
        assert b.client.stats.starts == 1


async def test_closing_answers_waiters_and_refuses_new_requests(tmp_path: Path) -> None:
    async with broker(tmp_path) as b:
        await b.store.put("a", BYTES)
        gate = b.store.hold(1, "get")
        asking = asyncio.create_task(b.client.ask(chunk()))
        await gate.reached.wait()
        await b.client.close()
        with pytest.raises(TierUnavailable, match="stopping"):
            await asking
        with pytest.raises(TierUnavailable, match="stopping"):
            await b.client.ask(chunk())


async def test_a_lost_process_fails_open_questions_and_restarts_with_back_off(tmp_path: Path) -> None:
    clock = EagerClock()
    launcher = Losing(clock)
    async with broker(tmp_path, launcher=launcher) as b:
        launcher.store = b.store
        b.client._clock = clock
        await b.store.put("a", BYTES)
        pauses = []
        for _ in range(8):
            gates = [b.store.hold(n, "get") for n in range(1, 6)]
            asking = [asyncio.create_task(b.client.ask(chunk())) for _ in gates]
            before = clock.monotonic()
            await gates[0].reached.wait()
            pauses.append(clock.monotonic() - before)
            await asyncio.gather(*(gate.reached.wait() for gate in gates))
            await launcher.lose()
            results = await asyncio.gather(*asking, return_exceptions=True)
            assert {type(result) for result in results} == {TierUnavailable}
        assert b.client.stats.lost == b.client.stats.starts == 8
        assert pauses[0] == 0 and all(0.05 <= pause <= 10.0 for pause in pauses[1:])
        assert pauses[-1] > 3.0
        assert (await b.client.ask(chunk())).size == len(BYTES)


class Losing(LocalLauncher):
    """A launcher whose process can be lost: its socket closes without notice."""

    def __init__(self, clock: EagerClock) -> None:
        self.store: ObjectStore | None = None

        async def open_store(_: StoreLocation) -> ObjectStore:
            assert self.store is not None
            return self.store

        super().__init__(open_store, clock, SeededRng(3))
        self.handle: LocalHandle | None = None

    async def launch(self) -> Launched:
        launched = await super().launch()
        assert isinstance(launched.handle, LocalHandle)
        self.handle = launched.handle
        return launched

    async def lose(self) -> None:
        assert self.handle is not None
        await self.handle.ended(5.0)


async def test_a_process_that_cannot_start_is_unavailable(tmp_path: Path) -> None:
    class Refusing:
        async def launch(self) -> Launched:
            raise TierUnavailable("the tier process cannot be started: no memory")

    async with broker(tmp_path, launcher=Refusing()) as b:
        b.client._clock = EagerClock()
        for _ in range(3):
            with pytest.raises(TierUnavailable, match="no memory"):
                await b.client.ask(chunk())


async def test_an_error_of_opening_the_store_is_the_answer_to_its_question_alone(tmp_path: Path) -> None:
    answers: list[LogError | None] = [StoreRefused("no such bucket"), None]
    store = MemoryStore(EagerClock())

    async def open_store(_: StoreLocation) -> ObjectStore:
        error = answers.pop(0)
        if error is not None:
            raise error
        return store

    async with broker(tmp_path, launcher=LocalLauncher(open_store, EagerClock(), SeededRng(1))) as b:
        await store.put("a", BYTES)
        with pytest.raises(StoreRefused, match="no such bucket"):
            await b.client.ask(chunk())
        assert (await b.client.ask(chunk())).size == len(BYTES)
        assert b.client.stats.starts == 1


async def test_a_bug_fails_only_its_own_operation(tmp_path: Path) -> None:
    async with broker(tmp_path) as b:
        await b.store.put("a", BYTES)
        b.store.fail(1, "get", error=ZeroDivisionError("a bug"))
        with pytest.raises(LogError, match="FetchChunk failed in the tier process"):
            await b.client.ask(chunk())
        assert (await b.client.ask(chunk())).size == len(BYTES)
        assert b.client.stats.starts == 1


async def test_a_cancelled_request_is_forgotten(tmp_path: Path) -> None:
    async with broker(tmp_path) as b:
        await b.store.put("a", BYTES)
        gate = b.store.hold(1, "put", "manifests/")
        claiming = asyncio.create_task(b.client.ask(Claim(IDS, WRITER, 1)))
        await gate.reached.wait()
        claiming.cancel()
        await asyncio.gather(claiming, return_exceptions=True)
        assert (await b.client.ask(Claim(IDS, WRITER, 2))).leader_epoch == 2
        assert isinstance(await b.client.ask(chunk()), ReadyFile)


async def test_unawaited_downloads_delay_nothing_and_leave_no_file(tmp_path: Path) -> None:
    """The store hangs: the waiters give up, and others make requests."""
    settings = dataclasses.replace(PATIENT, download_connections=1)
    async with broker(tmp_path, settings=settings) as b:
        for key in "abc":
            await b.store.put(key, BYTES)
        b.store.hold(1, "get", "a")
        asking = [asyncio.create_task(b.client.ask(chunk(key))) for key in "ab"]
        await until(lambda: b.client.stats.asked["FetchChunk"] == 2)
        await b.client.ask(Stats())  # the process has read both
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        assert (await b.client.ask(chunk("c"))).size == len(BYTES)
        assert (await b.client.ask(chunk("a"))).size == len(BYTES)
        assert b.store.count("get", "b") == 0
        assert len(files(tmp_path)) == 2


async def test_the_process_is_unavailable_without_a_descriptor(tmp_path: Path) -> None:
    async with broker(tmp_path, launcher=ExecLauncher()) as b:
        with no_descriptors(), pytest.raises(TierUnavailable, match="cannot be started: Too many open files"):
            await b.client.ask(chunk())


def test_a_question_is_answered_even_if_the_process_ends_at_that_moment(tmp_path: Path) -> None:
    """The test runs on uvloop, as the broker does: uvloop refuses writes to a closed socket."""

    async def asked_after(turns: int) -> None:
        async with broker(tmp_path) as b:
            await b.client.ask(Probe("x/"))
            life = b.client._life
            assert life is not None
            life.writer.transport.abort()
            for _ in range(turns):
                await asyncio.sleep(0)
            with contextlib.suppress(TierUnavailable):
                await b.client.ask(Probe("x/"))

    for turns in range(6):
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asked_after(turns))
