"""The common part of both S3 stores: client settings, the form of keys, ranges and checksums, the meaning of errors.

It does no I/O, and imports only the SDK's exceptions. Timeouts are per attempt: an attempt fails after READ_SECONDS without a
byte from the server.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from botocore import exceptions as sdk

from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.cold.stores.port import MAX_KEY_BYTES, ObjectInfo, UnfinishedUpload, check_key
from storage_tiers.errors import LogError, PreconditionFailed, StoreRefused, TierObjectMissing, TierUnavailable

CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
#: Attempts of requests that may be repeated (reads, parts, unconditional writes), the first included; the SDK waits between
#: them.
ATTEMPTS = 3
#: The most connections to the endpoint, and therefore the most concurrent requests.
CONNECTIONS = 16
#: Keys of one DeleteObjects request and of one page of a listing (S3's own bounds).
KEYS_PER_REQUEST = 1_000

#: Error codes of temporary failures: a retry may succeed.
_PASSING = frozenset({
    "BadDigest", "ExpiredToken", "IncompleteBody", "OperationAborted", "RequestTimeout", "RequestTimeoutException",
    "SlowDown", "Throttling", "ThrottlingException", "TooManyRequests", "XAmzContentSHA256Mismatch",
})  # fmt: skip
#: Errors that the SDK raises before it sends anything: credentials, names, settings.
_SETTINGS_ERRORS = (
    sdk.NoCredentialsError,
    sdk.PartialCredentialsError,
    sdk.ProfileNotFound,
    sdk.ConfigParseError,
    sdk.NoRegionError,
    sdk.InvalidRegionError,
    sdk.ParamValidationError,
)
_ADVICE = {
    "AccessDenied": "allow s3:ListBucket, s3:ListBucketMultipartUploads, s3:GetObject, s3:PutObject, s3:DeleteObject and "
    "s3:AbortMultipartUpload on it (without s3:ListBucket a missing object is denied as well)",
    "InvalidAccessKeyId": "the server does not know this access key; check AWS_ACCESS_KEY_ID or the profile",
    "SignatureDoesNotMatch": "the secret key does not belong to the access key; check AWS_SECRET_ACCESS_KEY",
    "RequestTimeTooSkewed": "this machine's clock is wrong; set it",
    "PermanentRedirect": "the bucket is in another region; set that region",
    "AuthorizationHeaderMalformed": "the bucket is in another region; set that region",
    "NotImplemented": "the server lacks a part of S3 that tidelog needs",
}


def client_config(path_style: bool, attempts: int, connect_seconds: float, read_seconds: float) -> dict[str, Any]:
    """Arguments of botocore's Config. They turn off the SDK's own checksums: by default the SDK adds a CRC-32 to each write and
    looks for one in each read, beside our CRC-32C of the same bytes."""
    return {
        "connect_timeout": connect_seconds,
        "read_timeout": read_seconds,
        "max_pool_connections": CONNECTIONS,
        "retries": {"total_max_attempts": attempts, "mode": "standard"},
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
        "s3": {"addressing_style": "path" if path_style else "auto"},
        "user_agent_extra": "tidelog",
    }


def wants_path_style(endpoint: str) -> bool:
    """True for servers other than AWS: few of them resolve `bucket.host`. The SDK alone uses path style only for IP
    addresses."""
    host = urlsplit(endpoint).hostname or ""
    return not host.endswith((".amazonaws.com", ".amazonaws.com.cn"))


# --- keys, ranges, checksums ------------------------------------------------------------------------------------------
def full_key(location: StoreLocation, key: str) -> str:
    check_key(key)
    full = full_prefix(location, key)
    if len(full.encode()) > MAX_KEY_BYTES:
        raise StoreRefused(
            f"{full[:80]}... is longer than the {MAX_KEY_BYTES} bytes of a key, because of the store's prefix"
        )
    return full


def full_prefix(location: StoreLocation, prefix: str) -> str:
    return f"{location.prefix}/{prefix}" if location.prefix else prefix


def relative_key(location: StoreLocation, full: str) -> str:
    return full[len(location.prefix) + 1 :] if location.prefix else full


def range_header(start: int, length: int | None) -> dict[str, str]:
    if length is None:
        return {"Range": f"bytes={start}-"} if start else {}
    return {"Range": f"bytes={start}-{start + length - 1}"}


def condition(if_absent: bool, if_match: str | None) -> dict[str, str]:
    if if_match is not None:
        return {"IfMatch": f'"{if_match}"'}
    return {"IfNoneMatch": "*"} if if_absent else {}


def checksum_text(checksum: int) -> str:
    return base64.b64encode(checksum.to_bytes(4, "big")).decode()


def checksum_of(answer: Mapping[str, Any]) -> int | None:
    """The server's CRC-32C of the whole object; None if the server reports none, or a composite of the parts' checksums."""
    text = answer.get("ChecksumCRC32C")
    if not text or "-" in text or answer.get("ChecksumType", "FULL_OBJECT") != "FULL_OBJECT":
        return None
    return int.from_bytes(base64.b64decode(text), "big")


def required(answer: Mapping[str, Any], name: str) -> Any:
    """The field of an answer. StoreRefused if the server omits it, although S3's API requires it."""
    found = answer.get(name)
    if found is None:
        raise StoreRefused(
            f"the object store answers without {name}, which tidelog needs for versions and sizes of objects; use a store "
            "that answers as S3 does, and check any proxy in front of it"
        )
    return found


def etag_of(answer: Mapping[str, Any]) -> str:
    return str(required(answer, "ETag")).strip('"')


def stored_info(key: str, size: int, answer: Mapping[str, Any]) -> ObjectInfo:
    """The ObjectInfo of an object just written. The answer's only time by the server's clock is its Date header."""
    date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    modified = _ms(parsedate_to_datetime(date)) if date else 0
    return ObjectInfo(key, size, etag_of(answer), modified, checksum_of(answer))


def head_info(key: str, answer: Mapping[str, Any]) -> ObjectInfo:
    size, modified = required(answer, "ContentLength"), _ms(required(answer, "LastModified"))
    return ObjectInfo(key, size, etag_of(answer), modified, checksum_of(answer))


def listed_info(location: StoreLocation, item: Mapping[str, Any]) -> ObjectInfo:
    key = relative_key(location, required(item, "Key"))
    return ObjectInfo(key, required(item, "Size"), etag_of(item), _ms(required(item, "LastModified")))


def listed_upload(location: StoreLocation, item: Mapping[str, Any]) -> UnfinishedUpload:
    return UnfinishedUpload(relative_key(location, item["Key"]), item["UploadId"], _ms(item["Initiated"]))


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


# --- errors -----------------------------------------------------------------------------------------------------------
def no_bucket(location: StoreLocation) -> StoreRefused:
    return StoreRefused(
        f"there is no bucket {location.bucket} for {location.url}; create it, or correct the store's URL"
    )


def ignores_ranges(location: StoreLocation) -> StoreRefused:
    return StoreRefused(f"{location.url} ignores ranges in reads; tidelog needs a server that supports them")


def error_code(error: BaseException | None) -> str:
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, sdk.ClientError) else ""


def explain(error: Exception, location: StoreLocation, action: str, *, conditional: bool = False) -> LogError:
    """Converts an error of the SDK or its transport to a LogError."""
    where = f"cannot {action.strip()} in {location.url}"  # a listing of everything has no prefix
    if isinstance(error, sdk.ClientError):
        return _explain_answer(error, where, location, conditional)
    if isinstance(error, _SETTINGS_ERRORS) or (isinstance(error, ValueError) and not isinstance(error, OSError)):
        return StoreRefused(f"{where}: {error}. Check the store's URL, endpoint and region, and the AWS settings")
    return TierUnavailable(f"{where}: {str(error) or 'no answer in time'}")


def explain_delete(errors: list[Any], location: StoreLocation) -> LogError | None:
    """The error for keys that DeleteObjects did not delete: its answer is 200 and lists them."""
    failed = [error for error in errors if error.get("Code") != "NoSuchKey"]
    if not failed:
        return None
    first = failed[0]
    text = f"cannot delete {len(failed)} objects in {location.url}, first {first.get('Key')}: {first.get('Message')}"
    return (
        StoreRefused(f"{text}; {_ADVICE['AccessDenied']}")
        if first.get("Code") == "AccessDenied"
        else TierUnavailable(text)
    )


def _explain_answer(error: sdk.ClientError, where: str, location: StoreLocation, conditional: bool) -> LogError:
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    code = error_code(error)
    text = f"{where}: {status} {code} {error.response.get('Error', {}).get('Message', '')}".rstrip(". ")
    if code == "NoSuchBucket":
        return no_bucket(location)
    if code == "NoSuchUpload":
        return TierUnavailable(f"{where}: the upload was aborted meanwhile; upload it again")
    if status == 412 or (conditional and status in (404, 409)):
        return PreconditionFailed(text)
    if status == 404:
        return TierObjectMissing(text)
    if code in _PASSING or (status >= 500 and status != 501) or status == 429:
        return TierUnavailable(text)
    advice = _ADVICE.get(code) or (_ADVICE["AccessDenied"] if status in (401, 403) else "correct the store's settings")
    return StoreRefused(f"{text}; {advice}")
