"""The proxy itself: it passes requests through, and kills before or after the server acts."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from storage_tiers.cold.stores.location import StoreLocation
from tests.support.s3_proxy import Action, S3Proxy, kill_after, kill_before
from tests.support.s3_servers import BUCKET, REGION, S3Server

pytestmark = pytest.mark.s3

CLIENT = (
    "import sys\n"
    "from storage_tiers.cold.stores.location import StoreLocation\n"
    "from storage_tiers.cold.stores.open import open_blocking_store\n"
    "store = open_blocking_store(StoreLocation.parse(sys.argv[1], endpoint=sys.argv[2], region=sys.argv[3]))\n"
    "print(flush=True)\n"
    "sys.stdin.readline()\n"
    "for number in range(3):\n"
    "    store.put(f'{number}', b'x' * 100_000)\n"
)


@pytest.fixture
def proxy(moto: S3Server) -> Iterator[S3Proxy]:
    with S3Proxy(moto.endpoint) as proxy:
        yield proxy


@pytest.mark.parametrize(("action", "left"), [(kill_before, 1), (kill_after, 2)])
def test_a_client_is_killed_before_or_after_its_second_request(
    moto: S3Server, proxy: S3Proxy, action: Callable[[int], Action], left: int
) -> None:
    prefix = f"killed-{left}"
    url = f"s3://{BUCKET}/{prefix}"
    command = [sys.executable, "-c", CLIENT, url, proxy.endpoint, REGION]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdin is not None and client.stdout is not None
        client.stdout.readline()
        proxy.on(2, action(client.pid), method="PUT")
        client.stdin.write("\n")
        client.stdin.flush()
        assert client.wait(30) == -signal.SIGKILL
    assert proxy.count("PUT") == 2
    listed = moto.client.list_objects_v2(Bucket=BUCKET, Prefix=prefix + "/")
    assert [item["Key"] for item in listed["Contents"]] == [f"{prefix}/{number}" for number in range(left)]
    assert StoreLocation.parse(url).prefix == prefix
