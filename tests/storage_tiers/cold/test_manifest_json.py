"""Manifests and their pages as JSON: they round-trip, and every kind of damage is refused."""

from __future__ import annotations

import gzip
import itertools
import json
from dataclasses import replace
from typing import Any

import pytest

from storage_tiers.cold.manifest import pages, transitions
from storage_tiers.cold.manifest.documents import document as sealed
from storage_tiers.cold.manifest.json import decode, decode_page, encode, encode_page
from storage_tiers.cold.manifest.model import (
    Author,
    Ids,
    Manifest,
    ManifestPage,
    ManifestWriter,
    PageKind,
    PageRef,
    Removed,
    Stamp,
)
from storage_tiers.cold.manifest.pages import ManifestChange, PageWrite
from storage_tiers.cold.manifest.transitions import first_manifest
from storage_tiers.errors import StoreRefused, TierCorrupt
from storage_tiers.records.checksum import crc32c
from tests.storage_tiers.cold.support import IDS, segment_of


def full_manifest() -> tuple[Manifest, dict[str, PageWrite]]:
    """A manifest that uses every field, and its pages."""
    numbers = itertools.count(1)
    written: dict[str, PageWrite] = {}
    manifest = first_manifest(IDS)

    def by() -> Author:
        known = {key: write.page for key, write in written.items()}
        return Author(
            ManifestWriter(1, 2), f"{next(numbers):032x}", 1_700_000_000_000, lambda: f"{next(numbers):032x}", known
        )

    def paginate(change: ManifestChange | Manifest | None) -> Manifest:
        assert change is not None
        settled = pages.paginate(change if isinstance(change, ManifestChange) else ManifestChange(change), by())
        written.update({write.ref.key: write for write in settled.writes})
        return settled.manifest

    for base in range(0, 1000, 10):
        segment = segment_of(IDS, base, base + 10, next(numbers))
        manifest = paginate(
            transitions.extend(manifest, segment, by(), leader_epoch=4, last_record_epoch=3, log_start=0)
        )
    manifest = paginate(transitions.pin(manifest, "report", by()))
    manifest = paginate(pages.expire(manifest, 355, by()))
    manifest = paginate(pages.expire(manifest, 395, by()))
    manifest = paginate(transitions.tombstone(manifest, [IDS.segment_key(5, 1, "f" * 32)], by()))
    segment = segment_of(IDS, 1005, 1010, next(numbers))
    manifest = paginate(
        transitions.extend(manifest, segment, by(), leader_epoch=4, last_record_epoch=4, log_start=1007)
    )
    manifest = paginate(pages.expire(manifest, 415, by()))
    assert (
        manifest.pages
        and manifest.segments
        and manifest.removed
        and manifest.tombstoned
        and manifest.pins
        and manifest.sidecar
    )
    assert manifest.segments[-1].gap_from == 1000
    return manifest, written


def test_manifests_and_pages_come_back() -> None:
    manifest, written = full_manifest()
    assert decode(encode(manifest), IDS) == manifest == decode(encode(manifest))
    assert {ref.kind for ref in manifest.pages} == {PageKind.LIVE, PageKind.REMOVED}
    for ref in manifest.pages:
        assert decode_page(written[ref.key].data, IDS, ref) == written[ref.key].page


def test_it_is_json_that_a_person_can_read() -> None:
    manifest, written = full_manifest()
    text = encode(manifest).decode()
    document = json.loads(text)
    assert list(document)[:3] == ["format", "least_reader", "cluster_id"]
    assert document["segments"][0]["key"].startswith("segments/00003/0000000")
    assert max(map(len, text.splitlines())) < 1000
    assert len(text.splitlines()) > len(manifest.segments) + len(manifest.pages) + len(manifest.removed)
    page = json.loads(gzip.decompress(written[manifest.pages[0].key].data))
    assert (page["kind"], page["topic_id"], page["partition"]) == ("live", str(IDS.topic_id), 3)


def test_keys_outside_the_topic_are_absolute() -> None:
    manifest, _ = full_manifest()
    packed = replace(manifest.segments[-1], key="elsewhere/packed.log", position=4096)
    manifest = replace(manifest, segments=(*manifest.segments[:-1], packed))
    assert json.loads(encode(manifest))["segments"][-1]["key"] == "/elsewhere/packed.log"
    assert decode(encode(manifest), IDS) == manifest


def changed(data: bytes, change: dict[str, Any], drop: str | None = None) -> bytes:
    document = json.loads(data)
    document.update(change)
    document.pop(drop, None)
    return sealed(document)


def test_unknown_fields_are_ignored_everywhere() -> None:
    manifest, _ = full_manifest()
    document = json.loads(encode(manifest))
    for place in (document, document["writer"], *document["segments"], *document["removed"], *document["pages"]):
        place["of_the_future"] = {"anything": [1, None]}
    assert decode(sealed(document), IDS) == manifest


def test_every_missing_or_mistyped_field_is_named() -> None:
    manifest, _ = full_manifest()
    data = encode(manifest)
    for name in json.loads(data):
        if name in ("sidecar", "checksum"):
            continue  # optional, or recomputed by `changed`
        with pytest.raises(TierCorrupt, match=name):
            decode(changed(data, {}, drop=name), IDS)
        with pytest.raises(TierCorrupt, match=name):
            decode(changed(data, {name: 1.5}), IDS)
    for list_name in ("segments", "removed", "pages", "pins", "tombstoned"):
        document = json.loads(data)
        for name in document[list_name][-1]:
            if name in ("gap_from", "base"):
                continue
            with pytest.raises(TierCorrupt, match=rf"{list_name}\[\d+\]"):
                broken_item = {key: value for key, value in document[list_name][-1].items() if key != name}
                decode(changed(data, {list_name: [*document[list_name][:-1], broken_item]}), IDS)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"null", b"\xff", b'{"format": 1}', b"[" * 100_000], ids=lambda data: repr(data[:8])
)
def test_bytes_that_are_not_a_manifest_are_refused(data: bytes) -> None:
    with pytest.raises(TierCorrupt):
        decode(data, IDS)


def test_another_partitions_manifest_is_not_served() -> None:
    manifest, _ = full_manifest()
    with pytest.raises(TierCorrupt, match="belongs to flights-3"):
        decode(encode(manifest), Ids(IDS.cluster_id, IDS.topic, IDS.topic_id, 4))


def test_a_digit_that_flips_is_seen() -> None:
    """The result is still JSON and mostly a valid manifest, so that only the checksum shows the damage."""
    manifest, written = full_manifest()
    page = written[manifest.pages[0].key]
    for data, read in (
        (encode(manifest), lambda changed: decode(changed, IDS)),
        (gzip.decompress(page.data), lambda changed: decode_page(*packed(changed, page.ref))),
    ):
        read(data)
        digits = [at for at, byte in enumerate(data) if chr(byte).isdigit()]
        for at in digits[:: len(digits) // 200]:
            other = b"1" if data[at : at + 1] != b"1" else b"2"
            with pytest.raises((TierCorrupt, StoreRefused)):
                read(data[:at] + other + data[at + 1 :])
        with pytest.raises(TierCorrupt, match="checksum"):
            read(data.replace(b'"checksum"', b'"chucksum"'))


def packed(document: bytes, ref: PageRef) -> tuple[bytes, Ids, PageRef]:
    """A page as stored, and a reference that matches it, so that only the page's own checksum can show damage."""
    data = gzip.compress(document, 1)
    return data, IDS, replace(ref, length=len(data), crc32c=crc32c(data))


def test_versions_are_refused_precisely() -> None:
    data = encode(full_manifest()[0])
    newer = decode(changed(data, {"format": 3}), IDS)
    assert newer.format == 3, "a newer writer may allow older readers"
    assert json.loads(encode(newer))["format"] == 3
    with pytest.raises(StoreRefused, match=r"format 4 needs a reader of format 3.*upgrade"):
        decode(changed(data, {"format": 4, "least_reader": 3}), IDS)
    for impossible in ({"format": 0}, {"format": 2, "least_reader": 3}, {"least_reader": 0}):
        with pytest.raises(TierCorrupt, match="does not exist"):
            decode(changed(data, impossible), IDS)


def test_invariants_are_checked_on_reading() -> None:
    manifest, _ = full_manifest()
    hole = replace(manifest, segments=(manifest.segments[0], *manifest.segments[2:]))
    overlap = replace(
        manifest, segments=(manifest.segments[0], replace(manifest.segments[1], base=manifest.segments[1].base - 1))
    )
    for damaged, fault in (
        (hole, "are in no live segment"),
        (overlap, "overlap"),
        (replace(manifest, end=manifest.end + 1), "the last live segment ends at"),
        (replace(manifest, log_start=manifest.end + 1), "log start"),
        (replace(manifest, recent=manifest.recent[:-1]), "recent commits"),
        (replace(manifest, removed=(Removed(Stamp(1, 1), manifest.segments[0]),)), "live and removed at once"),
    ):
        with pytest.raises(TierCorrupt, match=fault):
            decode(encode(damaged), IDS)


def test_pages_are_checked_against_the_manifest() -> None:
    manifest, written = full_manifest()
    ref = manifest.pages[0]
    data = written[ref.key].data
    for damaged in (data[:-1], data + b"\0", bytes([data[0] ^ 1]) + data[1:], b""):
        with pytest.raises(TierCorrupt, match="its manifest says"):
            decode_page(damaged, IDS, ref)
    other = Ids(IDS.cluster_id, IDS.topic, IDS.topic_id, 4)
    first, second, *rest = written[ref.key].page.segments

    def with_second(base: int) -> bytes:
        return encode_page(IDS, ManifestPage(PageKind.LIVE, (first, replace(second, base=base), *rest)))

    for content, fault in (
        (with_second(first.end + 1), rf"offsets \[{first.end}, {first.end + 1}\) are in none of its segments"),
        (with_second(first.end - 1), rf"offsets \[{first.end - 1}, {first.end}\) are in two of its segments"),
        (b"no gzip at all", "not gzip"),
        (gzip.compress(b"x" * 100)[:-4], "cut short"),
        (encode_page(other, written[ref.key].page), "another partition"),
        (encode_page(IDS, ManifestPage(PageKind.LIVE, written[ref.key].page.segments[:-1])), "its manifest says"),
    ):
        with pytest.raises(TierCorrupt, match=fault):
            decode_page(content, IDS, replace(ref, length=len(content), crc32c=crc32c(content)))
    assert ref.oldest is not None
    for wrong in (ref.oldest._replace(newest_ms=0), ref.oldest._replace(bytes=1), None):
        with pytest.raises(TierCorrupt, match="its first segment is"):
            decode_page(data, IDS, replace(ref, oldest=wrong))
    with pytest.raises(TierCorrupt, match="the newest time"):
        decode_page(data, IDS, replace(ref, newest_ms=0))


def test_a_page_that_is_a_bomb_is_refused() -> None:
    ref = full_manifest()[0].pages[0]
    bomb = gzip.compress(bytes(65 << 20))
    with pytest.raises(TierCorrupt, match="unpacks to more"):
        decode_page(bomb, IDS, replace(ref, length=len(bomb), crc32c=crc32c(bomb)))
