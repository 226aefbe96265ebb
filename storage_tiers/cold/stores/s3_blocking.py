"""S3 without an event loop, over boto3: for Spark, Lambdas and command-line tools.

Conditional writes are sent once, other requests up to ATTEMPTS times. Bodies are already in the caller's memory, so each is
sent in one request, up to S3's limit (5 GiB), and its condition is atomic. Thread-safe.

The time of a call as a whole has no bound; only connecting and each wait for bytes have one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from crc32c import crc32c

from storage_tiers.cold.stores import s3_common
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.cold.stores.port import ObjectBody, ObjectInfo, UnfinishedUpload, check_put, next_folder
from storage_tiers.errors import StoreRefused, TierObjectMissing

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


class BlockingS3Store:
    """Creating it sends no request; StoreRefused if the AWS settings cannot be used. `connect_seconds` bounds connecting and
    `read_seconds` each wait for bytes."""

    def __init__(
        self,
        location: StoreLocation,
        *,
        session: boto3.session.Session | None = None,
        connect_seconds: float = s3_common.CONNECT_SECONDS,
        read_seconds: float = s3_common.READ_SECONDS,
    ) -> None:
        self._location = location
        self._bucket = location.bucket

        def client(path_style: bool, attempts: int) -> S3Client:
            settings = s3_common.client_config(path_style, attempts, connect_seconds, read_seconds)
            return used.client(
                "s3", region_name=location.region, endpoint_url=location.endpoint, config=Config(**settings)
            )

        try:
            used = session or boto3.session.Session()  # refuses an unknown AWS_PROFILE
            path_style = location.endpoint is not None
            self._once = client(path_style, 1)
            if not path_style and s3_common.wants_path_style(self._once.meta.endpoint_url):  # AWS_ENDPOINT_URL
                path_style = True
                self._once = client(path_style, 1)
            self._repeating = client(path_style, s3_common.ATTEMPTS)
        except (BotoCoreError, ValueError) as error:
            raise s3_common.explain(error, location, "open the store") from error

    def put(self, key: str, body: bytes, *, if_absent: bool = False, if_match: str | None = None) -> ObjectInfo:
        check_put(key, if_absent, if_match)
        condition: dict[str, Any] = s3_common.condition(if_absent, if_match)
        client = self._once if condition else self._repeating
        with self._explained(f"write {key}", conditional=bool(condition)):
            answer = client.put_object(
                Bucket=self._bucket,
                Key=s3_common.full_key(self._location, key),
                Body=body,
                ChecksumCRC32C=s3_common.checksum_text(crc32c(body)),
                ChecksumAlgorithm="CRC32C",
                **condition,
            )
        return s3_common.stored_info(key, len(body), answer)

    def get(self, key: str, start: int = 0, length: int | None = None) -> ObjectBody:
        full = s3_common.full_key(self._location, key)
        if length == 0:
            return ObjectBody(b"", self.head(key).etag)
        span: dict[str, Any] = s3_common.range_header(start, length)
        try:
            with self._explained(f"read {key}"):
                answer = self._repeating.get_object(Bucket=self._bucket, Key=full, **span)
                data = answer["Body"].read()
        except StoreRefused as error:
            if s3_common.error_code(error.__cause__) != "InvalidRange":
                raise
            return ObjectBody(b"", self.head(key).etag)
        if span and "ContentRange" not in answer:
            raise s3_common.ignores_ranges(self._location)
        return ObjectBody(data, s3_common.etag_of(answer))

    def head(self, key: str) -> ObjectInfo:
        full = s3_common.full_key(self._location, key)
        try:
            with self._explained(f"read {key}"):
                answer = self._repeating.head_object(Bucket=self._bucket, Key=full, ChecksumMode="ENABLED")
        except TierObjectMissing:  # HEAD has no body to tell a missing object from a missing bucket
            self._check_bucket()
            raise
        return s3_common.head_info(key, answer)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        more = {"StartAfter": s3_common.full_prefix(self._location, start_after)} if start_after else {}
        for page in self._pages(prefix, more):
            for item in page.get("Contents", ()):
                yield s3_common.listed_info(self._location, item)

    def list_folders(self, prefix: str) -> Sequence[str]:
        names: list[str] = []
        for page in self._pages(prefix, {"Delimiter": "/"}):
            folders = (
                s3_common.relative_key(self._location, item["Prefix"]) for item in page.get("CommonPrefixes", ())
            )
            names.extend(filter(None, (next_folder(folder, prefix) for folder in folders)))
        return names

    def delete(self, keys: Sequence[str]) -> None:
        full = [s3_common.full_key(self._location, key) for key in keys]
        for first in range(0, len(full), s3_common.KEYS_PER_REQUEST):
            batch = full[first : first + s3_common.KEYS_PER_REQUEST]
            with self._explained(f"delete {len(batch)} objects"):
                answer = self._repeating.delete_objects(
                    Bucket=self._bucket, Delete={"Objects": [{"Key": key} for key in batch], "Quiet": True}
                )
            failure = s3_common.explain_delete(answer.get("Errors", []), self._location)
            if failure is not None:
                raise failure

    def unfinished_uploads(self, prefix: str) -> Iterator[UnfinishedUpload]:
        more: dict[str, Any] = {}
        while True:
            with self._explained(f"list uploads of {prefix}"):
                page = self._repeating.list_multipart_uploads(
                    Bucket=self._bucket, Prefix=s3_common.full_prefix(self._location, prefix), **more
                )
            for item in page.get("Uploads", ()):
                yield s3_common.listed_upload(self._location, item)
            if not page.get("IsTruncated"):
                return
            more = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def close(self) -> None:
        self._once.close()
        self._repeating.close()

    def _pages(self, prefix: str, more: dict[str, Any]) -> Iterator[Any]:
        full = s3_common.full_prefix(self._location, prefix)
        while True:
            with self._explained(f"list {prefix}"):
                page = self._repeating.list_objects_v2(Bucket=self._bucket, Prefix=full, **more)
            yield page
            if not page.get("IsTruncated"):
                return
            more = {**more, "ContinuationToken": page["NextContinuationToken"]}

    def _check_bucket(self) -> None:
        try:
            with self._explained("find the bucket"):
                self._repeating.head_bucket(Bucket=self._bucket)
        except TierObjectMissing:
            raise s3_common.no_bucket(self._location) from None

    @contextmanager
    def _explained(self, action: str, *, conditional: bool = False) -> Iterator[None]:
        """Wraps each call of the library, and converts its errors to LogErrors."""
        try:
            yield
        except (BotoCoreError, ClientError, OSError) as error:
            raise s3_common.explain(error, self._location, action, conditional=conditional) from error
