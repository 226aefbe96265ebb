"""A store's URL as a value: `s3://bucket/prefix`, `file:///path`, a plain path, or `memory://name`.

This module reads no environment variable and imports no store's library (`open.py` does that).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from storage_tiers.errors import InvalidConfig

#: S3's rule for bucket names, without its rarer conditions (no "..", no IP address), which the server checks.
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_FORMS = "s3://BUCKET/PREFIX, file:///PATH, a plain path, or memory://NAME"


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """`path` is set for `file`, `bucket` for `s3`; for `memory`, `bucket` is the store's name. `prefix` has no slash at either
    end.

    `endpoint` (a URL) and `region` are for S3 servers other than AWS, and override the standard AWS settings.
    """

    url: str
    scheme: str
    bucket: str = ""
    prefix: str = ""
    path: str = ""
    endpoint: str | None = None
    region: str | None = None

    @property
    def elsewhere(self) -> bool:
        """Whether another machine's clock stamps the store's objects. Judged by the address: only `localhost` and loopback
        addresses count as this machine."""
        host = urlsplit(self.endpoint or "").hostname or ""
        return self.scheme == "s3" and host not in ("localhost", "::1") and not host.startswith("127.")

    @classmethod
    def parse(cls, url: str, *, endpoint: str | None = None, region: str | None = None) -> StoreLocation:
        """Reads a store's URL. `InvalidConfig` if `url` or `endpoint` has no valid form."""
        scheme, separator, rest = url.partition("://")
        if not separator:
            return cls._at_path(url, url)
        if scheme == "s3":
            return cls._in_bucket(url, rest, endpoint, region)
        if scheme == "file":
            host, _, path = rest.partition("/")
            if host not in ("", "localhost"):
                raise InvalidConfig(f"{url!r} names the host {host!r}: a path is absolute, as in file:///{host}/{path}")
            return cls._at_path(url, unquote("/" + path))
        if scheme == "memory":
            return cls(url, scheme, bucket=rest.strip("/"))
        raise InvalidConfig(f"{url!r} is not the URL of a store: it has the form {_FORMS}")

    @classmethod
    def _at_path(cls, url: str, path: str) -> StoreLocation:
        if not path or "\0" in path or re.match(r"[A-Za-z0-9+.-]+:/?[^/]", path):
            raise InvalidConfig(f"{url!r} is not the URL of a store: it has the form {_FORMS}")
        return cls(url, "file", path=os.path.abspath(path))

    @classmethod
    def _in_bucket(cls, url: str, rest: str, endpoint: str | None, region: str | None) -> StoreLocation:
        bucket, _, prefix = rest.partition("/")
        if not _BUCKET.fullmatch(bucket):
            raise InvalidConfig(
                f"{url!r} has no valid bucket: 3 to 63 lower-case letters, digits, dots and hyphens, as in s3://my-logs/live"
            )
        prefix = prefix.strip("/")
        if "//" in prefix or "?" in prefix or "#" in prefix:
            raise InvalidConfig(f"{url!r} has an ambiguous prefix: no empty path components, '?' or '#'")
        if endpoint is not None:
            parts = urlsplit(endpoint)
            if parts.scheme not in ("http", "https") or not parts.netloc:
                raise InvalidConfig(
                    f"{endpoint!r} is not an S3 endpoint: it has the form http://HOST:PORT or https://HOST:PORT"
                )
        return cls(url, "s3", bucket, prefix, endpoint=endpoint, region=region)
