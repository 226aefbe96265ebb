"""The directory store under power loss: a run is cut after every operation. Whatever may be left shows each object whole,
old or new, shows every acknowledged one, and no deleted one again.

Then each fsync is dropped in turn, and the check must notice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from storage_tiers.cold.stores.directory import BlockingDirectoryStore
from storage_tiers.errors import LogError
from storage_tiers.files import OsFiles
from tests.faults.power_loss import Operation, RecordingFiles, cuts, materialise, sites
from tests.support.clock import SeededRng

#: The contents that each key may have after a power loss now; None is absence.
Allowed = dict[str, tuple[bytes | None, ...]]

ROOT = "above/store"


class Workload:
    """Notes, before and after each call, which contents of each key are right."""

    def __init__(self, folder: Path) -> None:
        self.files = RecordingFiles(str(folder))
        self.store = BlockingDirectoryStore(str(folder / ROOT), self.files, SeededRng(1))
        self.present: dict[str, bytes | None] = {}
        self.etags: dict[str, str] = {}

    def run(self) -> list[Operation]:
        self.store.create_root()
        self.put("cluster.json", b"first", if_absent=True)
        self.put("cluster.json", b"second", if_match=True)
        self.put("topics/a/00.log", b"segment" * 500, if_absent=True)
        self.put("topics/a/01.log", b"another" * 500)
        self.put("topics/a/root.json", b"1")
        self.put("topics/a/root.json", b"22", if_match=True)
        self.delete("topics/a/00.log")
        self.delete("topics/a/01.log", "topics/a/root.json")
        self.put("topics/a/root.json", b"again", if_absent=True)
        return self.files.operations

    def put(self, key: str, content: bytes, *, if_absent: bool = False, if_match: bool = False) -> None:
        self.note({key: (self.present.get(key), content)})
        etag = self.etags.get(key) if if_match else None
        self.etags[key] = self.store.put(key, content, if_absent=if_absent, if_match=etag).etag
        self.present[key] = content
        self.note({})

    def delete(self, *keys: str) -> None:
        self.note({key: (self.present[key], None) for key in keys})
        self.store.delete(keys)
        self.present.update(dict.fromkeys(keys))
        self.note({})

    def note(self, changing: Allowed) -> None:
        settled: Allowed = {key: (content,) for key, content in self.present.items()}
        self.files.note(settled | changing)


def broken_promises(operations: list[Operation], scratch: str, drop: Collection[str] = ()) -> Iterator[str]:
    for count, promise, states in cuts(operations, drop=drop, limit=30):
        allowed: Allowed = promise or {}
        for tree in states:
            store = BlockingDirectoryStore(f"{materialise(tree, scratch)}/{ROOT}", OsFiles())
            yield from (f"after {count}: {each}" for each in wrong_in(store, allowed))


def wrong_in(store: BlockingDirectoryStore, allowed: Allowed) -> list[str]:
    try:
        contents = {info.key: store.get(info.key).data for info in store.list("")}
        for upload in list(store.unfinished_uploads("")):
            store.abort_upload(upload)
        after = {info.key: store.get(info.key).data for info in store.list("")}
    except LogError as error:
        return [str(error)] if allowed else []  # before the first promise even the root may be missing
    wrong = [key for key, choices in allowed.items() if contents.get(key) not in choices]
    wrong += [f"{key} was never written" for key in contents if key not in allowed]
    return wrong + (["aborting uploads changed objects"] if after != contents else [])


@pytest.fixture(scope="module")
def operations(tmp_path_factory: pytest.TempPathFactory) -> list[Operation]:
    return Workload(tmp_path_factory.mktemp("run")).run()


def test_every_object_is_whole_and_no_acknowledged_one_is_missing(operations: list[Operation], tmp_path: Path) -> None:
    assert list(broken_promises(operations, str(tmp_path / "scratch"))) == []


def test_no_fsync_can_be_left_out(operations: list[Operation], tmp_path: Path) -> None:
    scratch = str(tmp_path / "scratch")
    needless = [site for site in sites(operations) if next(broken_promises(operations, scratch, {site}), None) is None]
    assert needless == []
