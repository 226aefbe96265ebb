"""The settings of the handlers, read from the environment once an invocation: the only module here that looks at it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.errors import InvalidConfig

STORE = "TIDELOG_STORE"
READER = "TIDELOG_READER"


@dataclass(frozen=True, slots=True)
class Settings:
    location: StoreLocation
    reader: str


def read_settings(environment: Mapping[str, str] = os.environ, *, reader: str = "verify-commit") -> Settings:
    """InvalidConfig that names the variable."""
    url = environment.get(STORE, "")
    if not url.startswith("s3://"):
        raise InvalidConfig(f"{STORE} is {url!r}: set it to the brokers' store, as in s3://BUCKET/PREFIX")
    return Settings(StoreLocation.parse(url), environment.get(READER, reader))
