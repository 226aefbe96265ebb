"""The handlers' settings, read once per invocation. No other module of this package reads the environment."""

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
    """The function's settings. `reader` names the owner of its cursors and verdicts in the bucket."""

    location: StoreLocation
    reader: str


def read_settings(environment: Mapping[str, str] = os.environ, *, reader: str = "verify-commit") -> Settings:
    """Reads the settings. Raises InvalidConfig, which names the variable, if one is invalid."""
    url = environment.get(STORE, "")
    if not url.startswith("s3://"):
        raise InvalidConfig(f"{STORE} is {url!r}; set it to the brokers' store, such as s3://BUCKET/PREFIX")
    return Settings(StoreLocation.parse(url), environment.get(READER, reader))
