"""The advertised versions are those of Apache Kafka 4.2.1, and kio can read every version that is served."""

from __future__ import annotations

import dataclasses
import importlib
import re

import pytest

from kafka_gateway.registry import APIS, Api, by_key

#: Recorded from a running Apache Kafka 4.2.1 broker (KRaft, ApiVersions 4, 2026): api key -> (lowest, highest). 71 and 72
#: were recorded with a reporter of client metrics, without which the broker does not advertise them.
KAFKA_4_2_1 = {
    0: (0, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 8: (2, 10), 9: (1, 10), 10: (0, 6), 11: (0, 9), 12: (0, 4),
    13: (0, 5), 14: (0, 5), 15: (0, 6), 16: (0, 5), 17: (0, 1), 18: (0, 4), 19: (2, 7), 20: (1, 6), 21: (0, 2),
    22: (0, 5), 23: (2, 4), 24: (0, 5), 25: (0, 4), 26: (0, 5), 27: (1, 2), 28: (0, 5), 29: (1, 3), 30: (1, 3),
    31: (1, 3), 32: (1, 4), 33: (0, 2), 34: (1, 2), 35: (1, 4), 36: (0, 2), 37: (0, 3), 38: (1, 3), 39: (1, 2),
    40: (1, 2), 41: (1, 3), 42: (0, 2), 43: (0, 2), 44: (0, 1), 45: (0, 1), 46: (0, 0), 47: (0, 0), 48: (0, 1),
    49: (0, 1), 50: (0, 0), 51: (0, 0), 55: (0, 2), 57: (0, 2), 60: (0, 2), 61: (0, 0), 64: (0, 0), 65: (0, 0),
    66: (0, 2), 68: (0, 1), 69: (0, 1), 71: (0, 0), 72: (0, 0), 74: (0, 1),
    75: (0, 0), 76: (1, 1), 77: (1, 1), 78: (1, 2), 79: (1, 2),
    80: (0, 1), 81: (0, 0), 83: (0, 0), 84: (0, 0), 85: (0, 1), 86: (0, 0), 87: (0, 1), 88: (0, 0), 89: (0, 0),
    90: (0, 1), 91: (0, 0), 92: (0, 0),
}  # fmt: skip


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_the_advertised_range_is_kafkas(api: Api) -> None:
    assert (api.lowest, api.highest) == KAFKA_4_2_1[api.key]


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_every_served_version_exists_and_is_flexible_from_where_the_table_says(api: Api) -> None:
    schema = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", api.name).lower()
    for version in range(api.served_from, api.highest + 1):
        module = importlib.import_module(f"kio.schema.{schema}.v{version}.request")
        request = getattr(module, f"{api.name}Request")
        assert request.__api_key__ == api.key
        assert request.__flexible__ == (version >= api.flexible_from)


def test_only_produce_is_advertised_below_its_served_versions() -> None:
    assert [(api.name, api.served_from) for api in APIS if api.served_from != api.lowest] == [("Produce", 3)]


def test_a_duplicate_key_is_refused() -> None:
    with pytest.raises(ValueError, match="api key 3 is both Metadata and Second"):
        by_key((*APIS, dataclasses.replace(by_key()[3], name="Second")))
