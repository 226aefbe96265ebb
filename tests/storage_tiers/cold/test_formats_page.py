"""docs/formats.md compared with the code: a reader made of json, gzip, struct and a CRC is written from that page alone."""

from __future__ import annotations

import gzip
import json
import re
import struct
from pathlib import Path
from typing import Any
from unittest import mock

from crc32c import crc32c

from storage_tiers.cold.manifest.cluster_file import ClusterState, Holder, encode_cluster
from storage_tiers.cold.manifest.json import encode
from storage_tiers.cold.manifest.topic_file import TopicState, encode_topic
from storage_tiers.cold.stores.memory import BlockingMemoryStore, MemoryStore
from tests.storage_tiers.cold.support import IDS, EagerClock, Local, batches, tier_of
from tests.storage_tiers.cold.test_manifest_json import full_manifest

MIB = 1 << 20


def read_document(data: bytes) -> dict[str, Any]:
    document = json.loads(data)
    assert document["checksum"] == crc32c(data[: data.rindex(b',\n"checksum": ')])
    assert isinstance(document, dict)
    return document


class PageReader:
    def __init__(self, store: BlockingMemoryStore, prefix: str) -> None:
        self.store, self.prefix = store, prefix
        self.manifest = read_document(store.get(f"{prefix}manifests/00003.json").data)
        assert self.manifest["least_reader"] <= 2 and self.manifest["state"] == "live"

    def key(self, text: str) -> str:
        return text[1:] if text.startswith("/") else self.prefix + text

    def segment(self, offset: int) -> dict[str, Any]:
        assert self.manifest["log_start"] <= offset < self.manifest["end"]
        segments, refs = self.manifest["segments"], list(self.manifest["pages"])
        while refs:
            ref = refs.pop()
            if ref["kind"] == "live" and ref["base"] <= offset < ref["end"]:
                data = self.store.get(self.key(ref["key"])).data
                assert (len(data), crc32c(data)) == (ref["length"], ref["crc32c"])
                page = read_document(gzip.decompress(data))
                segments, refs = page["segments"], page["pages"]
        (found,) = [segment for segment in segments if segment["base"] <= offset < segment["end"]]
        assert isinstance(found, dict)
        return found

    def section(self, segment: dict[str, Any], name: str) -> bytes:
        position, length, crc = segment["sections"][name]
        data = self.store.get(self.key(segment["sidecar"]), position, length).data
        assert crc32c(data) == crc
        return data

    def batch_at(self, offset: int) -> bytes:
        segment = self.segment(offset)
        rows = list(struct.iter_unpack(">IIq", self.section(segment, "index")))
        position = max(row[1] for row in rows if segment["base"] + row[0] <= offset)
        checks = [value for (value,) in struct.iter_unpack(">I", self.section(segment, "checks"))]
        data = b""
        for number in range(position // MIB, len(checks)):
            piece = self.store.get(self.key(segment["key"]), segment["position"] + number * MIB, MIB).data
            assert crc32c(piece) == checks[number]
            data += piece
        at = position % MIB
        while True:
            base, length = struct.unpack_from(">qi", data, at)
            if base + struct.unpack_from(">i", data, at + 23)[0] >= offset:
                return data[at : at + 12 + length]
            at += 12 + length

    def first_at_or_after(self, timestamp: int) -> dict[str, Any]:
        for segment in self.manifest["segments"]:
            if segment["max_timestamp"] >= timestamp:
                assert isinstance(segment, dict)
                return segment
        raise AssertionError("no such record")


async def test_a_reader_written_from_the_page_reads_everything(tmp_path: Path) -> None:
    clock = EagerClock()
    memory = MemoryStore(clock)
    tier, local = tier_of(memory, clock), Local(tmp_path)
    with mock.patch.multiple(
        "storage_tiers.cold.manifest.pages", MAX_SEGMENTS=4, MAX_PAGES=3, MAX_PAGE_SEGMENTS=2, UNFOLDABLE=1
    ):
        for base in range(0, 100, 10):
            await tier.extend(local.job(base, 10, text="x" * 20_000))
        await tier.expire(15)
    reader = PageReader(memory.blocking(), f"{IDS.cluster_id}/topics/flights/{IDS.topic_id}/")
    assert any(ref.get("level") for ref in reader.manifest["pages"]), (
        "the page's rules for manifest pages are tested too"
    )
    for offset in range(15, 100):
        assert reader.batch_at(offset) == batches(offset, 1, text="x" * 20_000)
    newest = reader.first_at_or_after(1_700_000_000_099)
    assert newest["base"] == 90
    for offset in (20, 90):
        head = memory.blocking().get(reader.key(reader.segment(offset)["sidecar"])).data
        magic, version, least, count, base, end, length, crc, header = struct.unpack_from(">8sHHIqqQII", head)
        assert (magic, version, least, base, end) == (b"TIDELIDX", 2, 2, offset, offset + 10)
        assert header == crc32c(head[:44] + head[48 : 48 + count * 28])
        segment = reader.segment(offset)
        assert (length, crc) == (segment["length"], segment["crc32c"])
        assert list(struct.iter_unpack(">iq", reader.section(segment, "epochs"))) == [(1, 0)]
        assert reader.section(segment, "producer") == f"producers@{offset + 10}".encode()


def test_the_page_explains_every_field() -> None:
    """docs/formats.md names every field of a full manifest, its pages, cluster.json and topic.json."""
    text = (Path(__file__).parents[3] / "docs" / "formats.md").read_text()
    manifest, written = full_manifest()
    holder = Holder(1, "disk", "start")
    documents = [encode(manifest), *(gzip.decompress(write.data) for write in written.values())]
    documents.append(encode_cluster(ClusterState(IDS.cluster_id, 1, holder)))
    documents.append(encode_topic(TopicState(IDS.cluster_id, IDS.topic, IDS.topic_id, manifest.state, 6, 1)))
    names = set().union(*(_names(json.loads(document)) for document in documents))
    assert len(names) > 50
    assert {name for name in names if f"`{name}`" not in text and f'"{name}"' not in text} == set()


def test_the_examples_are_of_real_sidecars() -> None:
    """Sections are contiguous after the table of five rows, and the producer section's length fits a snapshot."""
    text = (Path(__file__).parents[3] / "docs" / "formats.md").read_text()
    examples = re.findall(r'"sections": (\{.*?\})', text, re.DOTALL)
    assert len(examples) >= 2
    for example in examples:
        at = 48 + 5 * 28
        for position, length, _ in json.loads(example).values():
            assert position == at
            at += length
        assert (json.loads(example)["producer"][1] - 10) % 46 == 0


def _names(value: object) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(_names, value))
    if isinstance(value, dict):
        return set(value).union(*map(_names, value.values()))
    return set()
