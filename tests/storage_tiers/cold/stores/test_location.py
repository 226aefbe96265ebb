"""Store URLs: the meaning of each form, and the error for each invalid one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from storage_tiers.clock import SystemClock
from storage_tiers.cold.stores.directory import BlockingDirectoryStore
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.cold.stores.open import open_blocking_store, open_store
from storage_tiers.errors import InvalidConfig, StoreRefused
from storage_tiers.files import OsFiles


@pytest.mark.parametrize(
    ("url", "bucket", "prefix"),
    [
        ("s3://my-logs", "my-logs", ""),
        ("s3://my-logs/", "my-logs", ""),
        ("s3://my-logs/live/eu/", "my-logs", "live/eu"),
        ("s3://my.logs.2026/ä b", "my.logs.2026", "ä b"),
    ],
)
def test_urls_of_buckets_are_parsed(url: str, bucket: str, prefix: str) -> None:
    location = StoreLocation.parse(url, endpoint="http://127.0.0.1:9000", region="eu-west-1")
    assert (location.scheme, location.bucket, location.prefix) == ("s3", bucket, prefix)
    assert (location.url, location.endpoint, location.region) == (url, "http://127.0.0.1:9000", "eu-west-1")


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:///var/lib/store", "/var/lib/store"),
        ("file://localhost/var/lib/store", "/var/lib/store"),
        ("file:///with%20space", "/with space"),
        ("/var/lib/../store/", "/var/store"),
        ("data/store", f"{Path.cwd()}/data/store"),
        ("./a:b", f"{Path.cwd()}/a:b"),
    ],
)
def test_urls_of_directories_are_parsed(url: str, path: str) -> None:
    location = StoreLocation.parse(url)
    assert (location.scheme, location.path, location.bucket) == ("file", path, "")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("", "has the form"),
        ("s3:/bucket/prefix", "has the form"),
        ("s3:bucket", "has the form"),
        ("https://bucket.s3.amazonaws.com", "has the form"),
        ("gs://bucket", "has the form"),
        ("s3://", "no valid bucket"),
        ("s3://Bucket", "no valid bucket"),
        ("s3://ab", "no valid bucket"),
        ("s3://under_score", "no valid bucket"),
        ("s3://bucket/a//b", "ambiguous prefix"),
        ("s3://bucket/a?region=x", "ambiguous prefix"),
        ("file://var/lib/store", "names the host 'var'"),
    ],
)
def test_wrong_urls_get_a_precise_error(url: str, told: str) -> None:
    with pytest.raises(InvalidConfig, match=told):
        StoreLocation.parse(url)


@pytest.mark.parametrize("endpoint", ["localhost:9000", "ftp://host", "http://"])
def test_wrong_endpoints_are_refused(endpoint: str) -> None:
    with pytest.raises(
        InvalidConfig, match="is not an S3 endpoint: it has the form http://HOST:PORT or https://HOST:PORT"
    ):
        StoreLocation.parse("s3://bucket", endpoint=endpoint)


@pytest.mark.parametrize(
    ("url", "endpoint", "elsewhere"),
    [
        ("s3://bucket/logs", None, True),
        ("s3://bucket/logs", "https://minio.example:9000", True),
        ("s3://bucket/logs", "http://localhost:9000", False),
        ("s3://bucket/logs", "http://127.0.0.2:9000", False),
        ("s3://bucket/logs", "http://[::1]:9000", False),
        ("/var/lib/logs", None, False),
        ("memory://name", None, False),
    ],
)
def test_a_location_names_the_clock_that_stamps_its_objects(url: str, endpoint: str | None, elsewhere: bool) -> None:
    assert StoreLocation.parse(url, endpoint=endpoint).elsewhere is elsewhere


async def test_a_node_creates_its_directory_and_a_reader_does_not(tmp_path: Path) -> None:
    location = StoreLocation.parse(str(tmp_path / "new" / "store"))
    reader = open_blocking_store(location)
    assert isinstance(reader, BlockingDirectoryStore)
    with pytest.raises(StoreRefused, match="there is no directory"):
        list(reader.list(""))
    store = await open_store(location, OsFiles(), SystemClock())
    await store.put("key", b"x")
    await store.close()
    assert [info.key for info in reader.list("")] == ["key"]


async def test_memory_stores_are_shared_by_name() -> None:
    location = StoreLocation.parse("memory://test-of-location")
    store = await open_store(location, OsFiles(), SystemClock())
    await store.put("key", b"x")
    assert open_blocking_store(location).get("key").data == b"x"
    other = open_blocking_store(StoreLocation.parse("memory://test-of-location-other"))
    assert list(other.list("")) == []


def test_a_local_store_loads_no_s3_library(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from storage_tiers.cold.stores.location import StoreLocation\n"
        "from storage_tiers.cold.stores.open import open_blocking_store\n"
        "open_blocking_store(StoreLocation.parse(sys.argv[1])).close()\n"
        "loaded = {'boto3', 'botocore', 'aiobotocore', 'aiohttp'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {loaded}' if loaded else 0)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
