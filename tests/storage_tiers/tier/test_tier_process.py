"""The real process on a directory store: exec starts it, closing its socket ends it, and its broker survives its loss."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from storage_tiers.clock import SystemClock
from storage_tiers.cold.manifest.model import Manifest
from storage_tiers.cold.process.cluster_operations import Probe
from storage_tiers.cold.process.launcher import ExecLauncher
from storage_tiers.cold.process.operations import FetchChunk, LoadManifest
from storage_tiers.cold.process.protocol import Configure, encode
from storage_tiers.cold.process.settings import TierSettings
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.cold.stores.open import open_store
from storage_tiers.cold.stores.port import ObjectStore
from storage_tiers.errors import TierUnavailable
from storage_tiers.files import OsFiles
from storage_tiers.records.batch import headers
from tests.storage_tiers.cold.support import IDS
from tests.storage_tiers.tier.downloaded import BYTES, chunk
from tests.storage_tiers.tier.support import PATIENT, WRITER, Broker, batch, broker, read, taken, until
from tests.support.s3_servers import BUCKET, REGION, S3Server

SETTINGS = TierSettings(read_deadline_s=10.0)


async def stored(directory: Path) -> tuple[StoreLocation, ObjectStore]:
    location = StoreLocation.parse(str(directory / "store"))
    return location, await open_store(location, OsFiles(), SystemClock())


def running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


async def test_segments_reach_a_store_and_return_through_the_real_process(tmp_path: Path) -> None:
    location, _ = await stored(tmp_path)
    async with broker(tmp_path, location=location, launcher=ExecLauncher(), settings=SETTINGS) as b:
        assert b.client.process_id is None
        await b.client.ask(Probe("probes/"))
        content = b"".join(batch(offset, 10, size=2_000) for offset in range(0, 4_000, 10))
        manifest = await b.offload(content, 0, 4_000)
        reader = b.reader()
        data = taken(await read(reader, manifest, 0, len(content)))
        while len(data) < len(content):
            offset = len(data) // (len(content) // 400) * 10
            found = await read(reader, manifest, offset, len(content))
            start = offset // 10 * (len(content) // 400)
            data = data[:start] + taken(found)
        assert data == content
        hit = await reader.offset_for_timestamp(manifest, 1_700_000_000_009, log_start=0)
        assert hit is not None and hit.offset == 9
        counters = await b.client.refresh_counters()
        assert counters is not None
        print(f"the tier process peaked at {counters.peak_resident_bytes / (1 << 20):.0f} MiB resident")
        assert counters.peak_resident_bytes < 150 << 20
        process = b.client.process_id
        assert process is not None and process != os.getpid()
    assert not running(process)


async def test_it_starts_beside_a_folder_of_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    (here / "storage_tiers").mkdir(parents=True)
    (here / "storage_tiers" / "__init__.py").write_text("raise AssertionError('the current directory was searched')\n")
    monkeypatch.chdir(here)
    location, _ = await stored(tmp_path)
    async with broker(tmp_path, location=location, launcher=ExecLauncher(), settings=SETTINGS) as b:
        await b.client.ask(Probe("probes/"))
        assert b.client.process_id is not None


async def test_a_process_that_is_killed_in_the_middle_of_work_is_replaced(tmp_path: Path) -> None:
    location, store = await stored(tmp_path)
    await store.put("a", BYTES)
    async with broker(tmp_path, location=location, launcher=ExecLauncher(), settings=SETTINGS) as b:
        await b.client.ask(chunk())
        for _ in range(3):
            process = b.client.process_id
            assert process is not None
            os.kill(process, signal.SIGSTOP)  # requests stay unanswered from here on
            asking = [asyncio.create_task(b.client.ask(chunk())) for _ in range(4)]
            await until(lambda: b.client._life is not None and len(b.client._life.waiting) == 4)
            os.kill(process, signal.SIGKILL)
            results = await asyncio.gather(*asking, return_exceptions=True)
            assert {type(result) for result in results} == {TierUnavailable}
            ready = await b.client.ask(chunk())  # a new process answers, after a back-off
            assert Path(ready.path).read_bytes() == BYTES
            assert not running(process)
            # The dead process's files were swept before the next one started.
            assert list((tmp_path / "cache").iterdir()) == [Path(ready.path)]
        assert b.client.stats.lost == 3 and b.client.stats.starts == 4


async def test_a_process_that_hangs_is_killed_and_replaced_within_seconds(tmp_path: Path) -> None:
    location, store = await stored(tmp_path)
    await store.put("a", BYTES)
    settings = dataclasses.replace(SETTINGS, heartbeat_s=0.1)
    async with broker(tmp_path, location=location, launcher=ExecLauncher(), settings=settings) as b:
        await until_answered(b)
        process = b.client.process_id
        assert process is not None
        os.kill(process, signal.SIGSTOP)
        with pytest.raises(TierUnavailable, match=r"hung for 0\.8 s"):
            await b.client.ask(chunk())
        await until_answered(b)
        assert b.client.stats.lost >= 1 and not running(process)


def test_by_default_a_hung_process_is_replaced_within_ten_seconds() -> None:
    settings = TierSettings()
    assert (settings.silent_beats + 1) * settings.heartbeat_s < 10


async def test_a_process_that_works_for_long_does_not_count_as_hung(tmp_path: Path) -> None:
    settings = dataclasses.replace(PATIENT, heartbeat_s=0.01)
    async with broker(tmp_path, settings=settings) as b:
        await b.store.put("a", BYTES)
        await b.client.ask(chunk())
        gate = b.store.hold(1, "get")
        asking = asyncio.create_task(b.client.ask(chunk()))
        await gate.reached.wait()
        beats = 0
        original = b.client._beat

        def counted(life: Any) -> None:
            nonlocal beats
            beats += 1
            original(life)

        b.client._beat = counted  # type: ignore[method-assign]
        await until(lambda: beats > 3 * settings.silent_beats)
        gate.open()
        assert (await asking).size == len(BYTES)
        assert b.client.stats.lost == 0


async def until_answered(b: Broker) -> None:
    """Retries, because on a slow machine the process may start more slowly than this test's deadlines allow."""
    while True:
        try:
            await b.client.ask(chunk())
            return
        except TierUnavailable:
            continue


async def test_a_commit_is_completed_after_a_kill_in_its_middle(tmp_path: Path) -> None:
    location, _ = await stored(tmp_path)
    async with broker(tmp_path, location=location, launcher=ExecLauncher(), settings=SETTINGS) as b:
        base = 0
        for delay in (0.0, 0.004, 0.012, 0.03):
            await b.client.ask(LoadManifest(IDS, WRITER))
            segment = batch(base, 10, size=100_000)
            extending = asyncio.create_task(b.offload(segment, base, base + 10))
            await asyncio.sleep(delay)
            if b.client.process_id is not None:
                os.kill(b.client.process_id, signal.SIGKILL)
            await asyncio.gather(extending, return_exceptions=True)
            manifest = await loaded(b)
            if manifest is None or manifest.end == base:
                manifest = await b.offload(segment, base, base + 10)
            assert manifest.end == base + 10
            base += 10
        reader = b.reader()
        assert b.manifest is not None
        manifest = await b.client.ask(LoadManifest(IDS, WRITER))
        assert manifest is not None
        for offset in range(0, base, 10):
            assert taken(await read(reader, manifest, offset, 1)) == batch(offset, 10, size=100_000)


async def loaded(b: Broker) -> Manifest | None:
    """Loads the manifest as the broker does: it retries while the tier is unavailable."""
    while True:
        try:
            return await b.client.ask(LoadManifest(IDS, WRITER))
        except TierUnavailable:
            continue


async def test_an_idle_exit_is_noticed_and_the_next_use_starts_another(tmp_path: Path) -> None:
    location, store = await stored(tmp_path)
    await store.put("a", BYTES)
    settings = dataclasses.replace(SETTINGS, idle_s=0.1)
    async with broker(tmp_path, location=location, launcher=ExecLauncher(), settings=settings) as b:
        await b.client.ask(chunk())
        first = b.client.process_id
        assert first is not None
        await until(lambda: not b.client.running)
        assert b.client.stats.lost == 0
        await b.client.ask(chunk())
        assert b.client.process_id != first and not running(first)


async def test_sigterm_ends_the_process_cleanly_and_sigint_does_not(tmp_path: Path) -> None:
    location, store = await stored(tmp_path)
    await store.put("a", BYTES)
    async with broker(tmp_path, location=location, launcher=ExecLauncher(), settings=SETTINGS) as b:
        await b.client.ask(chunk())
        process = b.client.process_id
        assert process is not None
        os.kill(process, signal.SIGINT)
        await b.client.ask(chunk())
        assert b.client.process_id == process
        os.kill(process, signal.SIGTERM)
        await until(lambda: not b.client.running)
        await b.client.ask(chunk())
        assert not running(process)


async def test_the_process_is_nicer_than_its_broker(tmp_path: Path) -> None:
    location, store = await stored(tmp_path)
    await store.put("a", BYTES)
    async with broker(tmp_path, location=location, launcher=ExecLauncher(), settings=SETTINGS) as b:
        await b.client.ask(chunk())
        assert b.client.process_id is not None
        own, lowest = os.getpriority(os.PRIO_PROCESS, 0), 19
        assert os.getpriority(os.PRIO_PROCESS, b.client.process_id) == min(lowest, own + 5)


def start_alone(tmp_path: Path) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-m", "storage_tiers.cold.process.main", "--socket", str(theirs.fileno())],
        pass_fds=(theirs.fileno(),),
        stderr=subprocess.PIPE,
    )
    theirs.close()
    return process, ours


async def test_the_process_ends_with_its_brokers_socket(tmp_path: Path) -> None:
    """When the broker is killed, the kernel closes the broker's end of the socket."""
    location, _ = await stored(tmp_path)
    for configured in (False, True):
        process, ours = start_alone(tmp_path)
        if configured:
            ours.sendall(encode(Configure(location, str(tmp_path), SETTINGS)))
        ours.close()
        assert await asyncio.to_thread(process.wait, 30) == 0
        assert process.stderr is not None and process.stderr.read() == b""


@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\2{}", encode(Configure(StoreLocation.parse("/x"), "/x", SETTINGS)) * 2]
)
async def test_the_process_ends_where_the_protocol_is_broken(tmp_path: Path, said: bytes) -> None:
    process, ours = start_alone(tmp_path)
    ours.sendall(said)
    assert await asyncio.to_thread(process.wait, 30) == 1
    assert process.stderr is not None and b"tier_process.misunderstood" in process.stderr.read()
    ours.close()


def test_the_brokers_side_loads_no_store_library() -> None:
    """The tier process loads none of the node's other packages."""
    imports = {
        "storage_tiers.cold.process.client, storage_tiers.cold.read.reader": (
            "aiobotocore botocore boto3 aiohttp pyarrow service storage_tiers.cold.stores.s3 storage_tiers.cold.process.server"
        ),
        "storage_tiers.cold.process.main, storage_tiers.cold.stores.s3": "service kafka_gateway grpc_api pyarrow grpc",
    }
    for modules, unwanted in imports.items():
        code = f"import sys, {modules}; print(sorted(set({unwanted.split()!r}) & set(sys.modules)))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"


async def test_chunks_are_correct_under_many_readers(tmp_path: Path) -> None:
    location, store = await stored(tmp_path)
    await store.put("a", BYTES)
    async with broker(tmp_path, location=location, launcher=ExecLauncher(), settings=SETTINGS) as b:
        questions = [FetchChunk("a", 0, 1 << 20, chunk().crcs[:1]), chunk()]
        ready = await asyncio.gather(*(b.client.ask(questions[n % 2]) for n in range(40)))
        assert all(Path(r.path).read_bytes() == BYTES[: r.size] for r in ready)


@pytest.mark.s3
async def test_segments_reach_s3_and_return_through_the_real_process(tmp_path: Path, versitygw: S3Server) -> None:
    """Multipart uploads, ranged reads and commits over aiobotocore, which this process does not load."""
    location = StoreLocation.parse(f"s3://{BUCKET}/tier-process", endpoint=versitygw.endpoint, region=REGION)
    async with broker(tmp_path, location=location, launcher=ExecLauncher(), settings=TierSettings()) as b:
        await b.client.ask(Probe("probes/"))
        segments = [b"".join(batch(s * 30 + o, size=1_000_000) for o in range(30)) for s in range(2)]
        for number, content in enumerate(segments):
            await b.offload(content, number * 30, number * 30 + 30)
        offloaded = await b.client.refresh_counters()
        reader, offset, total = b.reader(), 0, 0
        assert b.manifest is not None
        began = time.monotonic()
        while offset < b.manifest.end:
            answer = taken(await read(reader, b.manifest, offset, 4 << 20))
            for position, header in headers(answer):
                if position + header.size > len(answer):
                    break
                assert answer[position : position + header.size] == batch(header.base_offset, size=1_000_000)
                total += header.size
                offset = header.next_offset
        seconds = time.monotonic() - began
        assert total == sum(map(len, segments))
        counters = await b.client.refresh_counters()
        assert counters is not None and offloaded is not None
        gets = counters.store_calls["get"] - offloaded.store_calls.get("get", 0)
        print(
            f"{total / 1e6 / seconds:.0f} MB/s, {gets} GETs, {counters.peak_resident_bytes >> 20} MiB at most resident"
        )
        assert gets == sum(-(-len(content) // (4 << 20)) + 1 for content in segments)
