"""The object store of a node: S3 over aiobotocore. Only the tier process opens it, so only the tier process loads the library.

Conditional writes are sent once: a repeated one could conflict with itself. By default the SDK would repeat them, and aiohttp
would on a lost connection; both repetitions are disabled. Reads, parts and unconditional writes of whole objects are attempted
up to ATTEMPTS times. Every write carries the CRC-32C of its bytes, which the server compares with the bytes received and
reports later.

Memory is bounded for each concurrent call by about three times MULTIPART_THRESHOLD (an object in a single request) or three
times PARTS_AT_ONCE times PART_BYTES (an object in parts). The factor comes from the library, which copies the bytes that it
signs and sends: an object of 256 MiB took 97 MiB above the idle process.

AWS and versitygw honour conditions on CompleteMultipartUpload. With a server that ignores the condition (moto: If-Match), only
the check right before completing is left, which is not atomic. Servers that answer 501 are refused. tidelog's own conditional
writes (manifests, `cluster.json`, `topic.json`) are far below the multipart threshold.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import aiohttp
from aiobotocore.config import AioConfig
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import AioSession, get_session
from botocore.exceptions import BotoCoreError, ClientError
from crc32c import crc32c

from storage_tiers.cold.stores import s3_common
from storage_tiers.cold.stores.bodies import body_length, hand_over, pieces, whole
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.cold.stores.port import (
    MULTIPART_THRESHOLD,
    PART_BYTES,
    FileBody,
    ObjectBody,
    ObjectInfo,
    Sink,
    UnfinishedUpload,
    check_put,
    next_folder,
)
from storage_tiers.errors import LogError, PreconditionFailed, StoreRefused, TierObjectMissing

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client

#: Parts of one upload under way at a time.
PARTS_AT_ONCE = 4
#: Bounds one call with all its attempts and its body, even if a server sends so slowly that READ_SECONDS never passes.
CALL_SECONDS = 120.0
#: Seconds that an idle connection is kept for the next request (servers close theirs after 15 s or more).
KEEP_SECONDS = 10
#: Bounds the abort of a failed upload, so that the error is not delayed; the sweep finds uploads that remain.
ABORT_SECONDS = 5.0

_LIBRARY_ERRORS = (BotoCoreError, ClientError, aiohttp.ClientError, OSError, TimeoutError)

#: CompletedPart of the S3 API, in order.
Parts = list[Any]
T = TypeVar("T")


class S3Store:
    """Made by `open`. `once` never repeats a request, `repeating` does."""

    def __init__(
        self,
        location: StoreLocation,
        once: S3Client,
        repeating: S3Client,
        clients: AsyncExitStack,
        call_seconds: float = CALL_SECONDS,
    ) -> None:
        self._location = location
        self._bucket = location.bucket
        self._once = once
        self._repeating = repeating
        self._clients = clients
        self._call_seconds = call_seconds

    @classmethod
    async def open(
        cls,
        location: StoreLocation,
        *,
        session: AioSession | None = None,
        connect_seconds: float = s3_common.CONNECT_SECONDS,
        read_seconds: float = s3_common.READ_SECONDS,
        call_seconds: float = CALL_SECONDS,
    ) -> S3Store:
        """Sets the clients up; sends nothing. `StoreRefused` if the AWS settings cannot be used.

        Stores opened on one `session` share its credentials and the S3 model; loading the model takes most of the time."""
        async with AsyncExitStack() as clients:
            session = session or get_session()

            async def client(path_style: bool, attempts: int) -> S3Client:
                settings = s3_common.client_config(path_style, attempts, connect_seconds, read_seconds)
                opened = _create_client(session, location, settings, reuse_connections=attempts > 1)
                return await clients.enter_async_context(opened)

            try:
                path_style = location.endpoint is not None
                once = await client(path_style, 1)
                if not path_style and s3_common.wants_path_style(once.meta.endpoint_url):  # AWS_ENDPOINT_URL
                    path_style = True
                    once = await client(path_style, 1)
                repeating = await client(path_style, s3_common.ATTEMPTS)
            except (*_LIBRARY_ERRORS, ValueError) as error:
                raise s3_common.explain(error, location, "open the store") from error
            return cls(location, once, repeating, clients.pop_all(), call_seconds)

    async def put(
        self, key: str, body: bytes | FileBody, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        check_put(key, if_absent, if_match)
        if body_length(body) > MULTIPART_THRESHOLD:
            return await self._put_in_parts(key, body, if_absent, if_match)
        data = body if isinstance(body, bytes) else await asyncio.to_thread(whole, body)
        condition: dict[str, Any] = s3_common.condition(if_absent, if_match)
        client = self._once if condition else self._repeating
        answer = await self._call(
            f"write {key}",
            client.put_object(
                Bucket=self._bucket,
                Key=s3_common.full_key(self._location, key),
                Body=data,
                ChecksumCRC32C=s3_common.checksum_text(crc32c(data)),
                ChecksumAlgorithm="CRC32C",
                **condition,
            ),
            conditional=bool(condition),
        )
        return s3_common.stored_info(key, len(data), answer)

    async def get(self, key: str, start: int = 0, length: int | None = None) -> ObjectBody:
        full = s3_common.full_key(self._location, key)
        if length == 0:
            return ObjectBody(b"", (await self.head(key)).etag)
        try:
            return await self._call(f"read {key}", self._fetch(full, s3_common.range_header(start, length)))
        except StoreRefused as error:
            if s3_common.error_code(error.__cause__) != "InvalidRange":
                raise
            return ObjectBody(b"", (await self.head(key)).etag)  # the answer 416 names no version

    async def get_into(self, key: str, start: int, length: int, sink: Sink) -> None:
        full = s3_common.full_key(self._location, key)
        try:
            await self._call(f"read {key}", self._fetch_into(full, s3_common.range_header(start, length), sink))
        except StoreRefused as error:
            # A range beyond the object's end has no bytes.
            if s3_common.error_code(error.__cause__) != "InvalidRange":
                raise

    async def head(self, key: str) -> ObjectInfo:
        full = s3_common.full_key(self._location, key)
        try:
            answer = await self._call(
                f"read {key}",
                self._repeating.head_object(Bucket=self._bucket, Key=full, ChecksumMode="ENABLED"),
            )
        except TierObjectMissing:  # HEAD has no body to tell a missing object from a missing bucket
            await self._check_bucket()
            raise
        return s3_common.head_info(key, answer)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        first = {"StartAfter": s3_common.full_prefix(self._location, start_after)} if start_after else {}
        async for page in self._pages(prefix, first):
            for item in page.get("Contents", ()):
                yield s3_common.listed_info(self._location, item)

    async def list_folders(self, prefix: str) -> Sequence[str]:
        names: list[str] = []
        async for page in self._pages(prefix, {"Delimiter": "/"}):
            folders = (
                s3_common.relative_key(self._location, item["Prefix"]) for item in page.get("CommonPrefixes", ())
            )
            names.extend(filter(None, (next_folder(folder, prefix) for folder in folders)))
        return names

    async def _pages(self, prefix: str, more: dict[str, Any]) -> AsyncIterator[Any]:
        while True:
            page = await self._call(
                f"list {prefix}",
                self._repeating.list_objects_v2(
                    Bucket=self._bucket, Prefix=s3_common.full_prefix(self._location, prefix), **more
                ),
            )
            yield page
            if not page.get("IsTruncated"):
                return
            more = {**more, "ContinuationToken": page["NextContinuationToken"]}
            more.pop("StartAfter", None)

    async def delete(self, keys: Sequence[str]) -> None:
        full = [s3_common.full_key(self._location, key) for key in keys]
        for first in range(0, len(full), s3_common.KEYS_PER_REQUEST):
            batch = full[first : first + s3_common.KEYS_PER_REQUEST]
            answer = await self._call(
                f"delete {len(batch)} objects",
                self._repeating.delete_objects(
                    Bucket=self._bucket, Delete={"Objects": [{"Key": key} for key in batch], "Quiet": True}
                ),
            )
            failure = s3_common.explain_delete(answer.get("Errors", []), self._location)
            if failure is not None:
                raise failure

    async def unfinished_uploads(self, prefix: str) -> AsyncIterator[UnfinishedUpload]:
        more: dict[str, Any] = {}
        while True:
            page = await self._call(
                f"list uploads of {prefix}",
                self._repeating.list_multipart_uploads(
                    Bucket=self._bucket, Prefix=s3_common.full_prefix(self._location, prefix), **more
                ),
            )
            for item in page.get("Uploads", ()):
                yield s3_common.listed_upload(self._location, item)
            if not page.get("IsTruncated"):
                return
            more = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    async def abort_upload(self, upload: UnfinishedUpload) -> None:
        try:
            await self._call(
                f"abort the upload of {upload.key}",
                self._repeating.abort_multipart_upload(
                    Bucket=self._bucket,
                    Key=s3_common.full_key(self._location, upload.key),
                    UploadId=upload.upload_id,
                ),
            )
        except LogError as error:
            if s3_common.error_code(error.__cause__) != "NoSuchUpload":
                raise

    async def close(self) -> None:
        await self._clients.aclose()

    # --- one object in parts ------------------------------------------------------------------------------------------
    async def _put_in_parts(
        self, key: str, body: bytes | FileBody, if_absent: bool, if_match: str | None
    ) -> ObjectInfo:
        full = s3_common.full_key(self._location, key)
        begun = await self._call(
            f"begin the upload of {key}",
            self._once.create_multipart_upload(
                Bucket=self._bucket, Key=full, ChecksumAlgorithm="CRC32C", ChecksumType="FULL_OBJECT"
            ),
        )
        upload = UnfinishedUpload(key, begun["UploadId"], 0)
        try:
            parts = await self._send_parts(upload, full, pieces(body, PART_BYTES))
            await self._check_condition(key, if_absent, if_match)
            return await self._complete(upload, full, body, parts, s3_common.condition(if_absent, if_match))
        except BaseException:
            await self._abort_quietly(upload)
            raise

    async def _send_parts(self, upload: UnfinishedUpload, full: str, source: Iterator[bytes]) -> Parts:
        """Sends the pieces with PARTS_AT_ONCE workers. A worker takes its next piece when its last one has arrived."""
        parts: dict[int, dict[str, Any]] = {}
        failures: list[LogError] = []
        taking = asyncio.Lock()

        async def send() -> None:
            while not failures:
                async with taking:
                    data = await asyncio.to_thread(next, source, None)
                    if data is None:
                        return
                    number = len(parts) + 1
                    parts[number] = {"PartNumber": number, "ChecksumCRC32C": s3_common.checksum_text(crc32c(data))}
                answer = await self._call(
                    f"upload part {number} of {upload.key}",
                    self._repeating.upload_part(
                        Bucket=self._bucket,
                        Key=full,
                        UploadId=upload.upload_id,
                        Body=data,
                        ChecksumAlgorithm="CRC32C",
                        **parts[number],
                    ),
                )
                parts[number]["ETag"] = s3_common.required(answer, "ETag")

        async def send_to_the_end() -> None:
            # A part that arrives after the abort may revive the upload, so the other workers finish their parts first.
            try:
                await send()
            except LogError as error:
                failures.append(error)

        await asyncio.gather(*(send_to_the_end() for _ in range(PARTS_AT_ONCE)))
        if failures:
            raise failures[0]
        return [parts[number] for number in sorted(parts)]

    async def _check_condition(self, key: str, if_absent: bool, if_match: str | None) -> None:
        if not if_absent and if_match is None:
            return
        try:
            present: str | None = (await self.head(key)).etag
        except TierObjectMissing:
            present = None
        if present != if_match:
            raise PreconditionFailed(f"object {key} is not in the expected state")

    async def _complete(
        self,
        upload: UnfinishedUpload,
        full: str,
        body: bytes | FileBody,
        parts: Parts,
        condition: dict[str, Any],
    ) -> ObjectInfo:
        checksum = body.crc32c if isinstance(body, FileBody) else crc32c(body)
        answer = await self._call(
            f"complete the upload of {upload.key}",
            self._once.complete_multipart_upload(
                Bucket=self._bucket,
                Key=full,
                UploadId=upload.upload_id,
                MultipartUpload={"Parts": parts},
                ChecksumType="FULL_OBJECT",
                ChecksumCRC32C=s3_common.checksum_text(checksum),
                **condition,
            ),
            conditional=bool(condition),
        )
        return s3_common.stored_info(upload.key, body_length(body), answer)

    async def _abort_quietly(self, upload: UnfinishedUpload) -> None:
        try:
            async with asyncio.timeout(ABORT_SECONDS):
                await self.abort_upload(upload)
        except (LogError, TimeoutError):
            pass  # the sweep of unfinished uploads finds it

    # --- calling the library ------------------------------------------------------------------------------------------
    async def _fetch(self, full: str, span: dict[str, Any]) -> ObjectBody:
        answer = await self._repeating.get_object(Bucket=self._bucket, Key=full, **span)
        async with answer["Body"] as stream:
            data = await stream.read()
        if span and "ContentRange" not in answer:
            raise s3_common.ignores_ranges(self._location)
        return ObjectBody(data, s3_common.etag_of(answer))

    async def _fetch_into(self, full: str, span: dict[str, Any], sink: Sink) -> None:
        answer = await self._repeating.get_object(Bucket=self._bucket, Key=full, **span)
        async with answer["Body"] as stream:
            if "ContentRange" not in answer:
                raise s3_common.ignores_ranges(self._location)
            # Reads the response itself: the body's own `read` joins and copies, which costs as much again as receiving.
            async for piece, _ in stream.raw_stream.content.iter_chunks():
                hand_over(piece, sink)

    async def _check_bucket(self) -> None:
        try:
            await self._call("find the bucket", self._repeating.head_bucket(Bucket=self._bucket))
        except TierObjectMissing:
            raise s3_common.no_bucket(self._location) from None

    async def _call(self, action: str, request: Awaitable[T], *, conditional: bool = False) -> T:
        """Awaits one request of the library. Only this method and `open` convert the library's errors to LogErrors."""
        try:
            async with asyncio.timeout(self._call_seconds):
                return await request
        except _LIBRARY_ERRORS as error:
            raise s3_common.explain(error, self._location, action, conditional=conditional) from error


class _SingleSendSession(AIOHTTPSession):
    """A session that sends each request once. By default aiohttp repeats GET, PUT and DELETE when a connection ends without an
    answer. The SDK repeats requests that may be repeated; a conditional write may not."""

    async def _get_session(self, proxy_url: str | None) -> aiohttp.ClientSession:
        session: aiohttp.ClientSession = await super()._get_session(proxy_url)  # type: ignore[misc]  # not in the stubs
        session._retry_connection = False
        return session


def _create_client(
    session: AioSession, location: StoreLocation, settings: dict[str, Any], reuse_connections: bool
) -> Any:
    """Creates a client. Without reuse each request gets a fresh connection: a request that is sent once must not fail on a
    connection that the server has just closed."""
    keep = (
        {"keepalive_timeout": KEEP_SECONDS} if reuse_connections else {"force_close": True, "keepalive_timeout": None}
    )
    config = AioConfig(http_session_cls=_SingleSendSession, connector_args=keep, **settings)
    client = session.create_client("s3", region_name=location.region, endpoint_url=location.endpoint, config=config)
    return _without_expect(client)


@asynccontextmanager
async def _without_expect(opening: Any) -> AsyncIterator[S3Client]:
    """Drops the Expect header: aiohttp waits for `100 Continue` without a deadline, even if the server does not support it."""
    async with opening as client:
        client.meta.events.register_last("before-call.s3", _drop_expect)
        yield client


def _drop_expect(params: dict[str, Any], **_: Any) -> None:
    params["headers"].pop("Expect", None)
