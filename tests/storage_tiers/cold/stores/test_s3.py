"""S3 stores against failing servers: the error for each failure, the retries, and the effect of a lost response."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
from aiobotocore.session import AioSession, get_session
from boto3.session import Session

from storage_tiers.cold.stores import s3_common
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.cold.stores.port import MULTIPART_THRESHOLD, ObjectStore, UnfinishedUpload
from storage_tiers.cold.stores.s3 import PARTS_AT_ONCE, S3Store
from storage_tiers.cold.stores.s3_blocking import BlockingS3Store
from storage_tiers.cold.stores.s3_common import ATTEMPTS
from storage_tiers.errors import LogError, PreconditionFailed, StoreRefused, TierUnavailable
from tests.support.blocking_adapter import BlockingAdapter
from tests.support.ports import free_port
from tests.support.s3_proxy import (
    S3Proxy,
    answer,
    delayed,
    hang_up_after,
    hang_up_before,
    stall,
    tampered,
    truncated,
    without_header,
)
from tests.support.s3_servers import BUCKET, REGION, S3Server, set_environment, versitygw_missing

pytestmark = pytest.mark.s3

IN_PARTS = bytes(MULTIPART_THRESHOLD + 1)
#: Seconds to wait for the answer of a server that gives none.
READ_SECONDS = 0.3
#: Seconds to wait for the answer of a server that gives one: a busy machine may delay it.
PATIENT_SECONDS = 60.0
#: Seconds: the longest operation waits READ_SECONDS for each of its requests, and a slow machine needs more.
BOUND_SECONDS = 60


@pytest.fixture
def sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits the SDK to one attempt, so that the test skips its back-off."""
    monkeypatch.setattr(s3_common, "ATTEMPTS", 1)


OpenStore = Callable[..., Awaitable[ObjectStore]]


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> S3Server:
    name = "versitygw" if versitygw_missing() is None else "moto"
    found: S3Server = request.getfixturevalue(name)
    return found


@pytest.fixture
def proxy(server: S3Server) -> Iterator[S3Proxy]:
    with S3Proxy(server.endpoint) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def sessions() -> tuple[AioSession, Session]:
    set_environment()
    return get_session(), Session()


@pytest.fixture(params=["asynchronous", "blocking"])
async def open_store(
    request: pytest.FixtureRequest, sessions: tuple[AioSession, Session], server: S3Server
) -> AsyncIterator[OpenStore]:
    opened: list[ObjectStore] = []

    async def open_at(
        endpoint: str, bucket: str = BUCKET, prefix: str = "", read_seconds: float = PATIENT_SECONDS
    ) -> ObjectStore:
        location = StoreLocation.parse(f"s3://{bucket}/{prefix or request.node.name}", endpoint=endpoint, region=REGION)
        store: ObjectStore
        if request.param == "blocking":
            store = BlockingAdapter(BlockingS3Store(location, session=sessions[1], read_seconds=read_seconds))
        else:
            store = await S3Store.open(location, session=sessions[0], read_seconds=read_seconds)
        opened.append(store)
        return store

    yield open_at
    for store in opened:
        await store.close()


async def every_operation(store: ObjectStore) -> list[tuple[str, LogError]]:
    """Tries each operation once; returns the name and the error of each that failed."""
    operations: dict[str, Callable[[], Awaitable[object]]] = {
        "put": lambda: store.put("key", b"x"),
        "create": lambda: store.put("key", b"x", if_absent=True),
        "replace": lambda: store.put("key", b"x", if_match="0123"),
        "put in parts": lambda: store.put("key", IN_PARTS),
        "get": lambda: store.get("key"),
        "get a range": lambda: store.get("key", 1, 5),
        "get into": lambda: store.get_into("key", 1, 5, lambda piece: None),
        "get nothing": lambda: store.get("key", 1, 0),
        "head": lambda: store.head("key"),
        "list": lambda: anext(aiter(store.list("")), None),
        "delete": lambda: store.delete(["key"]),
        "unfinished": lambda: anext(aiter(store.unfinished_uploads("")), None),
    }
    if not isinstance(store, BlockingAdapter):
        operations["abort"] = lambda: store.abort_upload(UnfinishedUpload("key", "upload", 0))
    failures: list[tuple[str, LogError]] = []

    async def attempt(name: str, operation: Callable[[], Awaitable[object]]) -> None:
        try:
            await operation()
        except LogError as error:
            failures.append((name, error))

    await asyncio.gather(*(attempt(name, operation) for name, operation in operations.items()))
    assert sorted(name for name, _ in failures) == sorted(operations), "every operation must fail"
    return failures


async def test_a_missing_bucket_is_refused_by_name(open_store: OpenStore, server: S3Server) -> None:
    store = await open_store(server.endpoint, bucket="no-such-bucket")
    for name, error in await every_operation(store):
        if name != "abort":  # abort succeeds: in a missing bucket the upload is gone
            assert isinstance(error, StoreRefused) and "no-such-bucket" in str(error), (name, error)


@pytest.mark.parametrize(
    ("code", "advice"), [("AccessDenied", "s3:GetObject"), ("InvalidAccessKeyId", "AWS_ACCESS_KEY_ID")]
)
async def test_denied_access_is_refused_with_advice(
    open_store: OpenStore, proxy: S3Proxy, code: str, advice: str
) -> None:
    proxy.always(answer(403, code))
    store = await open_store(proxy.endpoint)
    for name, error in await every_operation(store):
        assert isinstance(error, StoreRefused), (name, error)
        assert advice in str(error) or "s3:GetObject" in str(error), (name, error)


async def test_a_profile_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "mistyped")
    location = StoreLocation.parse(f"s3://{BUCKET}", region=REGION)
    with pytest.raises(StoreRefused, match=r"mistyped.*and the AWS settings"):
        await S3Store.open(location)
    with pytest.raises(StoreRefused, match=r"mistyped.*and the AWS settings"):
        BlockingS3Store(location)


async def test_wrong_keys_are_refused_by_a_real_server(versitygw: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    location = StoreLocation.parse(f"s3://{BUCKET}", endpoint=versitygw.endpoint, region=REGION)
    store = await S3Store.open(location)
    with pytest.raises(StoreRefused, match="AWS_SECRET_ACCESS_KEY"):
        await store.get("key")
    await store.close()
    with pytest.raises(StoreRefused, match="AWS_SECRET_ACCESS_KEY"):
        BlockingS3Store(location).get("key")


async def test_the_endpoint_may_come_from_the_standard_setting(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endpoint has a host name, for which the SDK's default addressing would use the host `BUCKET.localhost`."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint.replace("127.0.0.1", "localhost"))
    location = StoreLocation.parse(f"s3://{BUCKET}/from-environment")
    store = await S3Store.open(location)
    await store.put("key", b"content")
    await store.close()
    assert BlockingS3Store(location).get("key").data == b"content"
    assert server.client.get_object(Bucket=BUCKET, Key="from-environment/key")["Body"].read() == b"content"


async def test_missing_credentials_are_refused_with_advice(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    location = StoreLocation.parse(f"s3://{BUCKET}", endpoint=server.endpoint, region=REGION)
    store = await S3Store.open(location)
    with pytest.raises(StoreRefused, match="credentials"):
        await store.get("key")
    await store.close()
    with pytest.raises(StoreRefused, match="credentials"):
        BlockingS3Store(location).get("key")


@pytest.mark.usefixtures("sent_once")
async def test_a_server_that_is_down_is_unavailable(open_store: OpenStore) -> None:
    store = await open_store(f"http://127.0.0.1:{free_port()}")
    async with asyncio.timeout(BOUND_SECONDS):
        for name, error in await every_operation(store):
            assert isinstance(error, TierUnavailable), (name, error)


@pytest.mark.usefixtures("sent_once")
async def test_a_server_that_answers_without_an_etag_is_refused_by_name(open_store: OpenStore, proxy: S3Proxy) -> None:
    store = await open_store(proxy.endpoint)
    await store.put("a", b"x")
    proxy.always(without_header("ETag"))
    for asked in (store.put("b", b"x", if_absent=True), store.get("a"), store.head("a")):
        with pytest.raises(StoreRefused, match=r"answers without ETag.*proxy"):
            await asked


async def test_a_server_that_does_not_answer_is_unavailable_in_time(open_store: OpenStore, proxy: S3Proxy) -> None:
    proxy.always(stall())
    store = await open_store(proxy.endpoint, read_seconds=READ_SECONDS)
    async with asyncio.timeout(BOUND_SECONDS):
        for name, error in await every_operation(store):
            assert isinstance(error, TierUnavailable), (name, error)


async def test_a_silent_server_is_unavailable_at_the_deadline(open_store: OpenStore) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        store = await open_store(f"http://127.0.0.1:{listening.getsockname()[1]}", read_seconds=READ_SECONDS)
        async with asyncio.timeout(BOUND_SECONDS):
            with pytest.raises(TierUnavailable):
                await store.put("key", b"x", if_absent=True)


async def test_a_call_that_drips_ends_at_the_bound_of_the_call(
    proxy: S3Proxy, sessions: tuple[AioSession, Session]
) -> None:
    proxy.always(delayed(0.2))
    location = StoreLocation.parse(f"s3://{BUCKET}/drip", endpoint=proxy.endpoint, region=REGION)
    store = await S3Store.open(location, session=sessions[0], call_seconds=0.05)
    with pytest.raises(TierUnavailable):
        await store.put("key", b"x")
    await store.close()


@pytest.mark.usefixtures("sent_once")
async def test_busy_servers_are_unavailable(open_store: OpenStore, proxy: S3Proxy) -> None:
    proxy.always(answer(503))
    store = await open_store(proxy.endpoint)
    for name, error in await every_operation(store):
        assert isinstance(error, TierUnavailable), (name, error)


async def test_reads_are_repeated(open_store: OpenStore, proxy: S3Proxy) -> None:
    store = await open_store(proxy.endpoint)
    await store.put("key", b"content")
    before = proxy.count("GET")
    proxy.on(1, answer(503), method="GET")
    assert (await store.get("key")).data == b"content"
    assert proxy.count("GET") == before + 2
    proxy.always(hang_up_before(), method="GET")
    with pytest.raises(TierUnavailable):
        await store.get("key")
    assert proxy.count("GET") == before + 2 + ATTEMPTS


@pytest.mark.parametrize("failure", ["503", "hang up"])
async def test_conditional_writes_are_sent_once(open_store: OpenStore, proxy: S3Proxy, failure: str) -> None:
    store = await open_store(proxy.endpoint)
    etag = (await store.put("key", b"content")).etag
    before = proxy.count("PUT")
    proxy.always(answer(503) if failure == "503" else hang_up_before(), method="PUT")
    with pytest.raises(TierUnavailable):
        await store.put("new", b"content", if_absent=True)
    with pytest.raises(TierUnavailable):
        await store.put("key", b"content", if_match=etag)
    assert proxy.count("PUT") == before + 2


async def test_a_lost_answer_leaves_the_write(open_store: OpenStore, proxy: S3Proxy) -> None:
    store = await open_store(proxy.endpoint)
    proxy.on(1, hang_up_after(), method="PUT")
    with pytest.raises(TierUnavailable):
        await store.put("key", b"content", if_absent=True)
    assert (await store.get("key")).data == b"content"
    with pytest.raises(PreconditionFailed):
        await store.put("key", b"content", if_absent=True)


async def test_an_incomplete_answer_is_discarded(open_store: OpenStore, proxy: S3Proxy) -> None:
    store = await open_store(proxy.endpoint)
    await store.put("key", b"content" * 1000)
    proxy.on(1, truncated(100), method="GET")
    with pytest.raises(TierUnavailable):
        await store.get("key")
    size, pieces = len(b"content" * 1000), list[bytes | memoryview]()
    proxy.on(1, truncated(5000), method="GET")
    with pytest.raises(TierUnavailable):
        await store.get_into("key", 0, size, pieces.append)
    assert len(b"".join(pieces)) <= 5000
    pieces.clear()
    await store.get_into("key", 0, size, pieces.append)
    assert b"".join(pieces) == b"content" * 1000
    proxy.on(1, tampered(3), method="GET")
    assert (await store.get("key", 0, 7)).data == b"conuent"  # callers compare their own checksums


async def test_an_upload_in_parts_is_bounded_repeats_parts_and_leaves_nothing_behind(
    proxy: S3Proxy, server: S3Server, sessions: tuple[AioSession, Session]
) -> None:
    location = StoreLocation.parse(f"s3://{BUCKET}/parts", endpoint=proxy.endpoint, region=REGION)
    store = await S3Store.open(location, session=sessions[0])
    proxy.on(2, answer(503), method="PUT")
    await store.put("key", IN_PARTS)
    assert proxy.count("PUT", "partNumber") == 4, "three parts, one of them twice"
    proxy.always(answer(403, "AccessDenied"), path="partNumber=2")
    with pytest.raises(StoreRefused):
        await store.put("other", IN_PARTS)
    proxy.clear()
    proxy.on(1, hang_up_before(), method="POST", path="uploadId")
    with pytest.raises(TierUnavailable):
        await store.put("other", IN_PARTS)
    assert [upload async for upload in store.unfinished_uploads("")] == []
    assert [info.key async for info in store.list("")] == ["key"]
    await store.close()


async def test_an_upload_that_was_swept_is_uploaded_again_by_its_writer(
    proxy: S3Proxy, server: S3Server, sessions: tuple[AioSession, Session]
) -> None:
    """The sweep aborts the upload between the writer's last part and its completion request."""
    location = StoreLocation.parse(f"s3://{BUCKET}/swept", endpoint=proxy.endpoint, region=REGION)
    store = await S3Store.open(location, session=sessions[0])
    proxy.on(2, delayed(1.0), method="POST")
    writing = asyncio.create_task(store.put("key", IN_PARTS))
    while proxy.count("POST") < 2:
        await asyncio.sleep(0.01)
    (upload,) = [upload async for upload in store.unfinished_uploads("")]
    await store.abort_upload(upload)
    with pytest.raises(TierUnavailable, match="upload it again"):
        await writing
    assert [info.key async for info in store.list("")] == []
    await store.put("key", IN_PARTS)
    assert [info.key async for info in store.list("")] == ["key"]
    await store.close()


async def test_a_cancelled_upload_aborts_its_parts(
    proxy: S3Proxy, server: S3Server, sessions: tuple[AioSession, Session]
) -> None:
    location = StoreLocation.parse(f"s3://{BUCKET}/cancelled", endpoint=proxy.endpoint, region=REGION)
    store = await S3Store.open(location, session=sessions[0])
    proxy.always(stall(), path="partNumber")
    writing = asyncio.create_task(store.put("key", bytes(len(IN_PARTS) * 3)))
    while proxy.count("PUT") < PARTS_AT_ONCE:
        await asyncio.sleep(0.01)
    assert proxy.count("PUT") == PARTS_AT_ONCE
    writing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await writing
    assert [upload async for upload in store.unfinished_uploads("")] == []
    await store.close()


def test_a_listing_of_everything_is_explained_like_any_other() -> None:
    said = str(s3_common.explain(ValueError("no credentials"), StoreLocation.parse("s3://logs/live"), "list "))
    assert said.startswith("cannot list in s3://logs/live: no credentials.")
