"""The conformance suite over every store: memory, directory, S3 on moto and on versitygw, asynchronous and blocking."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest

from storage_tiers.clock import SystemClock
from storage_tiers.cold.stores.directory import DirectoryStore
from storage_tiers.cold.stores.directory_names import upload_path
from storage_tiers.cold.stores.locate import StoreLocation, open_blocking_store, open_store
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.files import OsFiles
from tests.conformance.object_store import ObjectStoreConformance, Subject
from tests.support.blocking_adapter import BlockingAdapter
from tests.support.s3_servers import BUCKET, REGION, S3Server

_prefixes = (f"conformance/{number}" for number in count())


class TestMemory(ObjectStoreConformance):
    @pytest.fixture(params=["asynchronous", "blocking"])
    def subject(self, request: pytest.FixtureRequest) -> Subject:
        store = MemoryStore(SystemClock())

        async def leave_unfinished(key: str) -> None:
            store.blocking().begin_upload(key)

        return Subject(BlockingAdapter(store.blocking()) if request.param == "blocking" else store, leave_unfinished)


class TestDirectory(ObjectStoreConformance):
    @pytest.fixture(params=["asynchronous", "blocking"])
    async def subject(self, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Subject]:
        root = str(tmp_path / "above" / "store")
        store = await DirectoryStore.create(root, OsFiles())
        tokens = count()

        async def leave_unfinished(key: str) -> None:
            path = Path(upload_path(root, key, f"{next(tokens):016x}"))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"half of it")

        yield Subject(BlockingAdapter(store.blocking()) if request.param == "blocking" else store, leave_unfinished)
        await store.close()


@pytest.mark.s3
class TestS3(ObjectStoreConformance):
    @pytest.fixture(params=["moto-asynchronous", "moto-blocking", "versitygw-asynchronous", "versitygw-blocking"])
    async def subject(self, request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
        name, _, kind = request.param.partition("-")
        server: S3Server = request.getfixturevalue(name)
        location = StoreLocation.parse(f"s3://{BUCKET}/{next(_prefixes)}", endpoint=server.endpoint, region=REGION)
        client = server.client()

        async def leave_unfinished(key: str) -> None:
            client.create_multipart_upload(Bucket=BUCKET, Key=f"{location.prefix}/{key}")

        if kind == "blocking":
            store: BlockingAdapter | object = BlockingAdapter(open_blocking_store(location))
        else:
            store = await open_store(location, OsFiles(), SystemClock())
        refuses = ("line\nfeed",) if name == "moto" else ()
        yield Subject(store, leave_unfinished, keys_are_paths=name == "versitygw", refuses=refuses)  # type: ignore[arg-type]
        await store.close()  # type: ignore[attr-defined]
        client.close()
