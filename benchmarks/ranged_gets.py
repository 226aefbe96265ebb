"""Fetches objects into files with the tier process's S3 client and no broker: the baseline for cold reads.

  python -m benchmarks.ranged_gets STORE_URL ENDPOINT DIRECTORY BYTES      prints MB/s

Eight ranged GETs of 4 MiB run at a time. As in the tier process, each is written into its own file. Nothing is verified.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial

from storage_tiers.cold.process.settings import CHUNK_BYTES
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.cold.stores.port import ObjectStore
from storage_tiers.cold.stores.s3 import S3Store

AT_ONCE = 8


async def fetched(url: str, endpoint: str, directory: str, wanted: int) -> float:
    """Fetches the first `wanted` bytes of the store's segments; returns MB/s."""
    store: ObjectStore = await S3Store.open(StoreLocation.parse(url, endpoint=endpoint))
    try:
        ranges = [one async for one in _ranges(store, wanted)]
        left: Iterator[tuple[str, int, int]] = iter(ranges)

        async def lane() -> None:
            for key, position, length in left:
                fd = _created(os.path.join(directory, f"{os.path.basename(key)}-{position}"))
                try:
                    await store.get_into(key, position, length, partial(_write, fd))
                finally:
                    os.close(fd)

        began = time.perf_counter()
        await asyncio.gather(*(lane() for _ in range(AT_ONCE)))
        elapsed = time.perf_counter() - began
        return float(sum(length for _, _, length in ranges) / elapsed / 1e6)
    finally:
        await store.close()


async def _ranges(store: ObjectStore, wanted: int) -> AsyncIterator[tuple[str, int, int]]:
    async for found in store.list(""):
        if not found.key.endswith(".log"):
            continue
        for position in range(0, found.size, CHUNK_BYTES):
            if wanted <= 0:
                return
            length = min(CHUNK_BYTES, found.size - position)
            wanted -= length
            yield found.key, position, length


def _created(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)


def _write(fd: int, piece: bytes | memoryview) -> None:
    written = os.write(fd, piece)
    if written != len(piece):
        raise OSError(f"{written} of {len(piece)} bytes were written: the disk is full")


if __name__ == "__main__":
    print(asyncio.run(fetched(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))))
