"""Shared by commands that read a bucket: their options, and opening the bucket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.errors import Unreachable
from storage_tiers.errors import InvalidConfig, StoreRefused, TierUnavailable

if TYPE_CHECKING:
    from storage_tiers.cold.stores.port import BlockingObjectStore

StoreUrl = Annotated[
    str, typer.Option("--store", "-s", metavar="URL", help="The store: s3://bucket/prefix, file:///path, or a path.")
]
S3Endpoint = Annotated[
    str | None, typer.Option("--s3-endpoint", metavar="URL", help="An S3 endpoint other than AWS's own.")
]
S3Region = Annotated[
    str | None, typer.Option("--s3-region", help="The S3 region. (default: from the standard AWS settings)")
]
ClusterId = Annotated[str | None, typer.Option("--cluster-id", help="Only this cluster. (default: all in the store)")]


@contextmanager
def opened_store(url: str, endpoint: str | None, region: str | None) -> Iterator[BlockingObjectStore]:
    """Yields the store at `url`, and closes it afterwards. Raises Unreachable if the store refuses or does not answer."""
    from storage_tiers.cold.stores.location import StoreLocation
    from storage_tiers.cold.stores.open import open_blocking_store

    try:
        location = StoreLocation.parse(url, endpoint=endpoint, region=region)
    except InvalidConfig as error:
        raise typer.BadParameter(str(error), param_hint="--store") from None
    try:
        store = open_blocking_store(location)
        try:
            yield store
        finally:
            store.close()
    except (StoreRefused, TierUnavailable) as error:
        raise Unreachable(str(error)) from None
