"""Opens the object store at a location: for a node, or blocking for readers and tools.

S3 libraries are imported only when an S3 store is opened: a node on a local directory never loads them. This module does not
read the environment; for S3 the SDK itself follows the standard AWS chain (AWS_ENDPOINT_URL, profiles, roles ...).
"""

from __future__ import annotations

from storage_tiers.clock import Clock, SystemClock
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.cold.stores.port import BlockingObjectStore, ObjectStore
from storage_tiers.errors import StoreRefused
from storage_tiers.files import Files, OsFiles

#: Stores of this process by name; `memory://NAME` opened twice is one store.
_memory_stores: dict[str, MemoryStore] = {}


async def open_store(location: StoreLocation, files: Files, clock: Clock) -> ObjectStore:
    """The store of a node. Creates a missing directory; neither creates a bucket nor checks that it exists."""
    if location.scheme == "memory":
        return _memory_store(location, clock)
    if location.scheme == "file":
        from storage_tiers.cold.stores.directory import DirectoryStore

        return await DirectoryStore.create(location.path, files)
    try:
        from storage_tiers.cold.stores.s3 import S3Store
    except ModuleNotFoundError as error:
        raise StoreRefused(f"{location.url} needs {error.name}: pip install tidelog-server") from error
    return await S3Store.open(location)


def open_blocking_store(location: StoreLocation) -> BlockingObjectStore:
    """The store for readers and tools. Creates nothing: the first use of a missing directory is refused."""
    if location.scheme == "memory":
        return _memory_store(location, SystemClock()).blocking()
    if location.scheme == "file":
        from storage_tiers.cold.stores.directory import BlockingDirectoryStore

        return BlockingDirectoryStore(location.path, OsFiles())
    try:
        from storage_tiers.cold.stores.s3_blocking import BlockingS3Store
    except ModuleNotFoundError as error:
        raise StoreRefused(f"{location.url} needs {error.name}: pip install 'tidelog[arrow]'") from error
    return BlockingS3Store(location)


def _memory_store(location: StoreLocation, clock: Clock) -> MemoryStore:
    return _memory_stores.setdefault(location.bucket, MemoryStore(clock))
