"""The conformance suite over every store: memory, directory, S3 on moto and on versitygw, asynchronous and blocking."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest
from aiobotocore.session import AioSession, get_session
from boto3.session import Session

from storage_tiers.clock import SystemClock
from storage_tiers.cold.stores.directory import DirectoryStore
from storage_tiers.cold.stores.directory_names import object_path, upload_path
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.cold.stores.s3 import S3Store
from storage_tiers.cold.stores.s3_blocking import BlockingS3Store
from storage_tiers.files import OsFiles
from tests.conformance.object_store import ObjectStoreConformance, Subject
from tests.support.blocking_adapter import BlockingAdapter
from tests.support.s3_servers import BUCKET, REGION, S3Server, set_environment

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

        tested = BlockingAdapter(store.blocking()) if request.param == "blocking" else store
        yield Subject(tested, leave_unfinished, path_of=lambda key: Path(object_path(root, key)))
        await store.close()


@pytest.fixture(scope="module")
def sessions() -> tuple[AioSession, Session]:
    """Shared by all tests, because loading the S3 model takes 0.1 s."""
    set_environment()
    return get_session(), Session()


@pytest.mark.s3
class TestS3(ObjectStoreConformance):
    @pytest.fixture(params=["moto-asynchronous", "moto-blocking", "versitygw-asynchronous", "versitygw-blocking"])
    async def subject(
        self, request: pytest.FixtureRequest, sessions: tuple[AioSession, Session]
    ) -> AsyncIterator[Subject]:
        name, _, kind = request.param.partition("-")
        server: S3Server = request.getfixturevalue(name)
        location = StoreLocation.parse(f"s3://{BUCKET}/{next(_prefixes)}", endpoint=server.endpoint, region=REGION)

        async def leave_unfinished(key: str) -> None:
            server.client.create_multipart_upload(Bucket=BUCKET, Key=f"{location.prefix}/{key}")

        store: BlockingAdapter | S3Store
        if kind == "blocking":
            store = BlockingAdapter(BlockingS3Store(location, session=sessions[1]))
        else:
            store = await S3Store.open(location, session=sessions[0])
        is_moto = name == "moto"
        directory = server.directory
        yield Subject(
            store,
            leave_unfinished,
            path_of=None if directory is None else lambda key: directory / BUCKET / location.prefix / key,
            keys_are_paths=not is_moto,
            refuses=("line\nfeed",) if is_moto else (),
            is_moto=is_moto,
        )
        await store.close()
