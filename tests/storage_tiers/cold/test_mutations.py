"""Damaged documents: every change yields a value or a precise refusal, never another error."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from storage_tiers.cold.manifest.cluster_file import ClusterState, Holder, decode_cluster, encode_cluster
from storage_tiers.cold.manifest.documents import document as sealed
from storage_tiers.cold.manifest.json import decode, decode_page, encode
from storage_tiers.cold.manifest.model import State
from storage_tiers.cold.manifest.topic_file import TopicState, decode_topic, encode_topic
from storage_tiers.cold.segments import sidecar, sidecar_builder
from storage_tiers.errors import StoreRefused, TierCorrupt
from storage_tiers.records.checksum import crc32c
from tests.storage_tiers.cold.support import IDS, batches
from tests.storage_tiers.cold.test_manifest_json import full_manifest

VALUES: list[Any] = [None, 0, -1, 1 << 62, 1 << 70, "", "x", "/abs", "../..", [], {}, [1], [[1, 2]], True, 1.5]


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += paths(inner, (*path, key))
    return found


def other_value(data: bytes, chance: random.Random) -> bytes:
    document = json.loads(data)
    path = chance.choice(paths(document)[1:])
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = chance.choice(VALUES)
    return sealed(document)


def other_bytes(data: bytes, chance: random.Random) -> bytes:
    damaged = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
    return bytes(damaged[: chance.choice([len(damaged), chance.randrange(len(damaged))])])


def test_no_damage_leads_to_another_error() -> None:
    manifest, written = full_manifest()
    ref = manifest.pages[0]
    known = {"base": 0, "end": 5, "aborted": (), "epochs": (), "producer_state": b"p"}
    data = batches(0, 5)

    def read_page(document: bytes) -> object:
        packed = gzip.compress(document, 1)
        return decode_page(packed, IDS, replace(ref, length=len(packed), crc32c=crc32c(packed)))

    holder = Holder(1, "disk", "start")
    topic = TopicState(IDS.cluster_id, "t", IDS.topic_id, State.LIVE, 1, 1, {"a": "b"}, (IDS.topic_id,))
    documents: list[tuple[bytes, Callable[[bytes], object]]] = [
        (encode(manifest), lambda damaged: decode(damaged, IDS)),
        (gzip.decompress(written[ref.key].data), read_page),
        (encode_cluster(ClusterState("c", 1, holder)), lambda damaged: decode_cluster(damaged, "c")),
        (encode_topic(topic), lambda damaged: decode_topic(damaged, IDS.cluster_id, "t")),
        (sidecar_builder.build(data, 0, len(data), **known).data, sidecar.parse),  # type: ignore[arg-type]
    ]
    chance = random.Random(7)
    refused = 0
    for sound, read in documents:
        read(sound)
        for number in range(300):
            change = other_value if number % 2 and sound[:1] == b"{" else other_bytes
            try:
                read(change(sound, chance))
            except (TierCorrupt, StoreRefused) as error:
                refused += 1
                assert len(str(error)) > 20
    assert refused > 900
