"""Opens the store that the options name, and turns errors that the user can correct into option errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark_tidelog.options import OptionError, ReadOptions
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.cold.stores.open import open_blocking_store
from storage_tiers.cold.stores.port import BlockingObjectStore
from storage_tiers.errors import InvalidRequest, UnknownTopicOrPartition


def open_store(options: ReadOptions) -> BlockingObjectStore:
    location = StoreLocation.parse(options.store, endpoint=options.s3_endpoint, region=options.s3_region)
    return open_blocking_store(location)


@contextmanager
def option_errors(prefix: str = "") -> Iterator[None]:
    """Raises errors that the user can correct as OptionError, with `prefix` before the text."""
    try:
        yield
    except (InvalidRequest, UnknownTopicOrPartition) as error:
        raise OptionError(f"{prefix}{error}") from None
