"""The directory store's guarantees beyond the conformance suite: other processes, dead writers, failing disks."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest
from crc32c import crc32c

from storage_tiers.cold.stores import directory
from storage_tiers.cold.stores.directory import COPY_BYTES, BlockingDirectoryStore, DirectoryStore
from storage_tiers.cold.stores.port import FileBody, UnfinishedUpload
from storage_tiers.errors import LogError, PreconditionFailed, StoreRefused, TierUnavailable
from storage_tiers.files import Buffer, OsFiles
from tests.support.clock import SeededRng

PROCESSES = 4


def new_store(root: Path, files: OsFiles | None = None) -> BlockingDirectoryStore:
    store = BlockingDirectoryStore(str(root), files or OsFiles())
    store.create_root()
    return store


def run_processes(root: Path, program: str) -> list[str]:
    """Runs the program in PROCESSES processes at once on one store; returns what each printed."""
    prelude = (
        "import sys\n"
        "from storage_tiers.cold.stores.directory import BlockingDirectoryStore\n"
        "from storage_tiers.errors import PreconditionFailed\n"
        "from storage_tiers.files import OsFiles\n"
        "store = BlockingDirectoryStore(sys.argv[1], OsFiles())\n"
        "sys.stdin.read()\n"  # all processes start together, when the test closes their input
    )
    command = [sys.executable, "-c", prelude + program, str(root)]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(PROCESSES)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
    printed = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * PROCESSES
    return printed


def test_processes_lose_no_increment(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    store.put("roots/counter.json", b"0")
    run_processes(
        tmp_path,
        "left = 50\n"
        "while left:\n"
        "    read = store.get('roots/counter.json')\n"
        "    try:\n"
        "        store.put('roots/counter.json', b'%d' % (int(read.data) + 1), if_match=read.etag)\n"
        "        left -= 1\n"
        "    except PreconditionFailed:\n"
        "        pass\n",
    )
    assert store.get("roots/counter.json").data == b"%d" % (50 * PROCESSES)


def test_one_of_several_processes_creates_each_key(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    printed = run_processes(
        tmp_path,
        "for number in range(50):\n"
        "    try:\n"
        "        store.put(f'roots/{number}/root.json', b'x', if_absent=True)\n"
        "        print(number)\n"
        "    except PreconditionFailed:\n"
        "        pass\n",
    )
    won = [int(line) for output in printed for line in output.split()]
    assert sorted(won) == list(range(50))
    assert len(list(store.list(""))) == 50 and list(store.unfinished_uploads("")) == []


def test_deleting_beside_writers_removes_no_directory_under_them(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    run_processes(
        tmp_path,
        "import os\n"
        "for number in range(50):\n"
        "    key = f'a/b/c/{number % 3}-{os.getpid()}.log'\n"
        "    store.put(key, b'x')\n"
        "    assert store.get(key).data == b'x'\n"
        "    store.delete([key])\n",
    )
    assert list(store.list("")) == []
    assert not (tmp_path / "a").exists(), "directories left empty are removed"


#: Each program runs in a process of its own, started by exec: a worker's threads may be in gRPC, which aborts a forked child.
_KILLED_AT_FSYNC = """
import os, signal, sys
from storage_tiers.cold.stores.directory import BlockingDirectoryStore
from storage_tiers.files import OsFiles
class KillAtFsync(OsFiles):
    def fsync(self, fd):
        os.kill(os.getpid(), signal.SIGKILL)
BlockingDirectoryStore(sys.argv[1], KillAtFsync()).put("topics/a/0.log", b"new" * 1000)
"""
_HOLDER = """
import signal, sys
from storage_tiers.cold.stores.directory import BlockingDirectoryStore
from storage_tiers.files import OsFiles
with BlockingDirectoryStore(sys.argv[1], OsFiles())._locked("root.json"):
    print("held", flush=True)
    signal.pause()
"""


def test_a_killed_writer_leaves_an_unfinished_upload(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    before = store.put("topics/a/0.log", b"old")
    writer = subprocess.run([sys.executable, "-c", _KILLED_AT_FSYNC, str(tmp_path)])
    assert writer.returncode == -signal.SIGKILL
    assert store.head("topics/a/0.log") == before
    (upload,) = store.unfinished_uploads("topics/")
    assert upload.key == "topics/a/0.log"
    assert [info.key for info in store.list("")] == ["topics/a/0.log"]
    store.abort_upload(upload)
    assert list(store.unfinished_uploads("")) == []
    assert [path.name for path in (tmp_path / "topics" / "a").iterdir()] == ["0.log"]


def test_a_process_that_dies_with_a_lock_gives_it_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_store(tmp_path)
    store.put("root.json", b"old")
    monkeypatch.setattr(directory, "LOCK_TRIES", 3)
    with subprocess.Popen([sys.executable, "-c", _HOLDER, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            with pytest.raises(TierUnavailable, match="held the lock"):
                store.put("root.json", b"new")
            assert list(store.unfinished_uploads("")) == []
        finally:
            holder.kill()
    store.put("root.json", b"new")
    assert store.get("root.json").data == b"new"


class _AbortAtFsync(OsFiles):
    """Runs a sweep in each fsync, which aborts the upload right before the upload is published."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def fsync(self, fd: int) -> None:
        super().fsync(fd)
        sweeper = BlockingDirectoryStore(str(self.root), OsFiles())
        for upload in sweeper.unfinished_uploads(""):
            sweeper.abort_upload(upload)


@pytest.mark.parametrize("if_absent", [True, False])
def test_an_upload_that_was_swept_fails_and_leaves_nothing(tmp_path: Path, if_absent: bool) -> None:
    store = new_store(tmp_path, _AbortAtFsync(tmp_path))
    with pytest.raises(TierUnavailable, match="aborted"):
        store.put("topics/a/0.log", b"x", if_absent=if_absent)
    assert list(store.list("")) == [] == list(store.unfinished_uploads(""))


def test_no_two_versions_share_an_etag(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    etags = []
    for _ in range(100):
        etags.append(store.put("root.json", b"same size", if_absent=True).etag)
        etags.append(store.put("root.json", b"same size", if_match=etags[-1]).etag)
        store.delete(["root.json"])
    assert len(set(etags)) == len(etags)


def test_an_old_etag_stays_invalid_when_the_clock_steps_back(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    path = tmp_path / "root.json"
    store.put("root.json", b"1")
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 3_600_000_000_000))
    ahead = store.head("root.json")
    after = store.put("root.json", b"2", if_match=ahead.etag)
    assert after.etag != ahead.etag and after.modified_ms >= ahead.modified_ms
    with pytest.raises(PreconditionFailed):
        store.put("root.json", b"3", if_match=ahead.etag)


def test_objects_are_plain_files_and_other_files_are_no_objects(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    key = "cluster/topics/flights.of.2013/id/segments/00003/00000000000000000000-0-ab.log"
    store.put(key, b"records")
    assert (tmp_path / key).read_bytes() == b"records"
    (tmp_path / "README").write_text("a note")
    (tmp_path / "cluster" / "bad%zz").write_text("not a name of ours")
    (tmp_path / "lost+found").mkdir()
    assert [info.key for info in store.list("")] == [key]
    assert store.list_folders("") == ["cluster"]


class _FailingDisk(OsFiles):
    def __init__(self, operation: str, code: int) -> None:
        self.operation, self.code = operation, code

    def _perhaps_fail(self, operation: str) -> None:
        if operation == self.operation:
            raise OSError(self.code, os.strerror(self.code))

    def pwrite(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        self._perhaps_fail("pwrite")
        return super().pwrite(fd, buffers, position)

    def fsync(self, fd: int) -> None:
        self._perhaps_fail("fsync")
        super().fsync(fd)

    def mkdir(self, path: str) -> None:
        self._perhaps_fail("mkdir")
        super().mkdir(path)

    def rename(self, source: str, target: str) -> None:
        self._perhaps_fail("rename")
        super().rename(source, target)


@pytest.mark.parametrize(
    ("operation", "code", "error"),
    [
        ("pwrite", errno.ENOSPC, TierUnavailable),
        ("fsync", errno.EIO, TierUnavailable),
        ("rename", errno.EDQUOT, TierUnavailable),
        ("mkdir", errno.EACCES, StoreRefused),
        ("rename", errno.EROFS, StoreRefused),
    ],
)
def test_a_failing_disk_leaves_no_object(tmp_path: Path, operation: str, code: int, error: type[LogError]) -> None:
    new_store(tmp_path)
    store = BlockingDirectoryStore(str(tmp_path), _FailingDisk(operation, code))
    with pytest.raises(error, match=os.strerror(code)):
        store.put("topics/0.log", b"x")
    assert list(store.list("")) == [] == list(store.unfinished_uploads(""))


def test_a_missing_root_is_refused_by_every_operation(tmp_path: Path) -> None:
    store = BlockingDirectoryStore(str(tmp_path / "absent"), OsFiles())
    upload = UnfinishedUpload("key", "0" * 16, 0)
    for operation in (
        lambda: store.put("a/key", b""),
        lambda: store.get("a/key"),
        lambda: store.head("a/key"),
        lambda: list(store.list("")),
        lambda: store.list_folders(""),
        lambda: store.delete(["key"]),
        lambda: list(store.unfinished_uploads("a/")),
        lambda: store.abort_upload(upload),
    ):
        with pytest.raises(StoreRefused, match="there is no directory"):
            operation()
    assert not (tmp_path / "absent").exists()


def test_an_upload_id_cannot_leave_the_store(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store")
    victim = tmp_path / "victim"
    victim.touch()
    with pytest.raises(StoreRefused):
        store.abort_upload(UnfinishedUpload("key", "/../../victim", 0))
    assert victim.exists()


async def test_a_large_file_is_copied_in_bounded_memory(tmp_path: Path) -> None:
    source = tmp_path / "segment.log"
    content = os.urandom(1 << 20) * 32
    source.write_bytes(content)
    body = FileBody(str(source), 0, len(content), crc32c(content))
    del content
    store = await DirectoryStore.create(str(tmp_path / "store"), OsFiles(), SeededRng(1))
    tracemalloc.start()
    try:
        await store.put("segment.log", body)
        assert (await store.head("segment.log")).crc32c == body.crc32c
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * COPY_BYTES
    await store.close()


async def test_closing_waits_for_work_in_progress(tmp_path: Path) -> None:
    store = await DirectoryStore.create(str(tmp_path), OsFiles())
    writing = [asyncio.create_task(store.put(f"{number}.log", b"x" * 100_000)) for number in range(10)]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*writing)
    assert len(list(store.blocking().list(""))) == 10
