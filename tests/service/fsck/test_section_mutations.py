"""fsck finds a wrong value in any number of any sidecar, under matching checksums and manifests, except those in UNTOLD."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from storage_tiers.cold.manifest.documents import FORMAT, LEAST_READER, document
from storage_tiers.cold.segments import sidecar
from storage_tiers.cold.stores.memory import BlockingMemoryStore
from storage_tiers.records.checksum import crc32c
from tests.service.fsck.test_field_mutations import Mutated, is_damaged, stored
from tests.storage_tiers.cold.full_store import FullStore, ids_of

HEAD = struct.Struct(">8sHHIqqQI")
HEAD_FIELDS = ("magic", "format", "least_reader", "sections", "base", "end", "length", "crc32c")
ROWS: Mapping[str, tuple[struct.Struct, tuple[str, ...]]] = {
    "index": (struct.Struct(">IIq"), ("offset", "position", "max_timestamp")),
    "checks": (struct.Struct(">I"), ("crc",)),
    "aborted": (struct.Struct(">hqqqq"), ("version", "producer", "first", "last", "last_stable")),
    "epochs": (struct.Struct(">iq"), ("epoch", "start")),
    "producer": (
        struct.Struct(">qhiqiqiq"),
        ("id", "epoch", "last_sequence", "last_offset", "delta", "timestamp", "coordinator_epoch", "open_from"),
    ),
    "batches": (struct.Struct(">qiqiq"), ("id", "last_sequence", "last_offset", "delta", "timestamp")),
}
#: Bytes that precede a section's rows.
PREFACE = {"producer": 10, "batches": 8}

#: The segment that has a gap, as compaction leaves it.
GAP = 60
#: The base of the first segment that is live.
LIVE_FROM = 30
#: The producer without transactions.
PLAIN = 7
#: Field -> (its wrong values that cannot be detected, why).
UNTOLD: Mapping[str, tuple[set[str], str]] = {
    "header.format": ({"one more", "huge"}, "a newer writer's sidecar, which this reader understands"),
    "header.least_reader": ({"one less"}, "a sidecar that readers of format 1 would understand"),
    "epochs.start": ({"one more"}, "log start may have cut it there"),
    "epochs rows": ({"without its first"}, "log start may have cut it there"),
    "producer rows": ({"without its first", "without its last"}, "a producer may have expired"),
    "producer.coordinator_epoch of none": (
        {"one more", "huge"},
        "a transaction may have ended before the first batch at hand",
    ),
    "producer.coordinator_epoch": ({"negative"}, "a producer that expired and came back has none"),
    "batches.timestamp of transactions": (
        {"one more", "one less", "huge", "negative"},
        "after a restart the broker takes a marker's for its producer's last batch's",
    ),
    "batches rows": ({"without its first", "without its last"}, "the broker may have lost its file of them"),
}
#: The same for a producer without batches after the gap: compaction may have removed the producer's last batches.
ANY = {"one more", "one less", "huge", "negative"}
BEHIND_A_GAP: Mapping[str, set[str]] = {
    **{f"producer.{field}": ANY for field in ("epoch", "last_sequence", "delta", "timestamp", "coordinator_epoch")},
    "producer.id": ANY - {"negative"},
    "producer.last_offset": ANY - {"huge"},
    "producer.coordinator_epoch of none": {"one more", "huge"},
    "producer.open_from": {"one more"},
    **{f"batches.{field}": ANY for field in ("last_sequence", "timestamp")},
    **{f"batches.{field}": {"one more", "one less"} for field in ("last_offset", "delta")},
    "batches.id": {"one more"},
}
#: The same for an earlier batch before the first live segment: no segment shows that batch.
BEFORE_THE_FIRST = {
    field: kinds for field, kinds in BEHIND_A_GAP.items() if field.startswith("batches.") and ".id" not in field
}


def sections_of(store: BlockingMemoryStore, segment: Mapping[str, Any]) -> dict[str, bytes]:
    data = store.get(ids_of(1).prefix + segment["sidecar"]).data
    return {name: data[at : at + length] for name, (at, length, _) in segment["sections"].items()}


def rebuilt(
    segment: Mapping[str, Any], sections: Mapping[str, bytes], head: tuple[int, ...] | None = None
) -> tuple[bytes, dict[str, list[int]]]:
    """A sidecar of these sections, and its table of sections."""
    at = HEAD.size + 4 + 28 * len(sections)
    table: dict[str, list[int]] = {}
    for name, content in sections.items():
        table[name] = [at, len(content), crc32c(content)]
        at += len(content)
    fields = head or (
        FORMAT,
        LEAST_READER,
        len(sections),
        segment["base"],
        segment["end"],
        segment["length"],
        segment["crc32c"],
    )
    front = HEAD.pack(b"TIDELIDX", *fields)
    rows = b"".join(struct.pack(">8sQQI", name.encode(), *span) for name, span in table.items())
    return front + struct.pack(">I", crc32c(rows, crc32c(front))) + rows + b"".join(sections.values()), table


def write(mutated: Mutated, base: int, data: bytes, table: Mapping[str, list[int]]) -> None:
    """Writes the sidecar of the segment at `base`, and its table into the page and the manifest that name it."""
    store, ids = mutated.store, ids_of(1)
    manifest = stored(store, ids.manifest_key)
    for ref in manifest["pages"]:
        page = stored(store, ids.prefix + ref["key"])
        for segment in (*page["segments"], *page["removed"]):
            if segment.get("base") == base:
                segment["sections"] = table
                mutated.put(ids.prefix + segment["sidecar"], data)
                packed = _packed(page)
                mutated.put(ids.prefix + ref["key"], packed)
                ref.update(length=len(packed), crc32c=crc32c(packed))
    for segment in (*manifest["segments"], *manifest["removed"]):
        if segment.get("base") == base:
            segment["sections"] = table
            mutated.put(ids.prefix + segment["sidecar"], data)
            if manifest["sidecar"]["key"] == segment["sidecar"]:
                manifest["sidecar"]["sections"] = table
    mutated.put(ids.manifest_key, document(manifest))


def _packed(page: Any) -> bytes:
    import gzip

    return gzip.compress(document(page))


def segments(store: BlockingMemoryStore) -> dict[int, Any]:
    ids = ids_of(1)
    manifest = stored(store, ids.manifest_key)
    pages = [stored(store, ids.prefix + ref["key"]) for ref in manifest["pages"]]
    lists = [
        manifest["segments"],
        manifest["removed"],
        *(each[name] for each in pages for name in ("segments", "removed")),
    ]
    return {segment["base"]: segment for found in lists for segment in found if "base" in segment}


def numbers(value: int, size: int) -> Iterator[tuple[str, int]]:
    most = (1 << (8 * size - 1)) - 1
    yield "one more", value + 1
    yield "one less", value - 1
    yield "huge", most - 5
    yield "negative", -1


@pytest.mark.parametrize("name", [*ROWS, "header"])
def test_every_wrong_number_is_found(full: FullStore, name: str) -> None:
    mutated = Mutated(full.store)
    missed: set[tuple[str, str]] = set()
    tried = 0
    found = segments(full.store)
    for base in (20, 40, 50, 90, 110):
        segment = found[base]
        for field, what, data, table in _mutations(full.store, segment, name):
            tried += 1
            write(mutated, base, data, table)
            try:
                if not is_damaged(full.store):
                    missed.add((field, what))
            finally:
                mutated.undo()
    assert tried > 10
    untold = {(field, what) for field, (kinds, _) in UNTOLD.items() for what in kinds}
    for where, fields in (("behind a gap", BEHIND_A_GAP), ("before the first segment", BEFORE_THE_FIRST)):
        untold |= {(f"{field} {where}", what) for field, kinds in fields.items() for what in kinds}
    assert missed - untold == set()
    assert {each for each in untold if each[0].startswith(name)} <= missed, "a finding made now needs no exception"


def _mutations(
    store: BlockingMemoryStore, segment: Any, name: str
) -> Iterator[tuple[str, str, bytes, Mapping[str, list[int]]]]:
    sections = sections_of(store, segment)
    if name == "header":
        yield from _of_header(segment, sections)
        return
    layout, fields = ROWS[name]
    skip = PREFACE.get(name, 0)
    rows = list(layout.iter_unpack(sections[name][skip:]))
    for at in sorted({0, len(rows) - 1} & set(range(len(rows)))):
        for place, (field, code) in enumerate(zip(fields, layout.format[1:], strict=True)):
            for what, wrong in numbers(rows[at][place], struct.calcsize(code)):
                row = list(rows[at])
                row[place] = wrong
                try:
                    changed = layout.pack(*row)
                except struct.error:
                    continue
                if changed == layout.pack(*rows[at]):
                    continue
                new = [layout.pack(*each) for each in rows]
                new[at] = changed
                none = " of none" if field == "coordinator_epoch" and rows[at][place] == -1 else ""
                behind = " behind a gap" if name in ("producer", "batches") and segment["base"] > GAP else ""
                if name == "batches" and not behind and rows[at][2] < LIVE_FROM < segment["base"]:
                    behind = " before the first segment"
                if (name, field) == ("batches", "timestamp") and not behind and rows[at][0] != PLAIN:
                    behind = " of transactions"
                yield f"{name}.{field}{none}{behind}", what, *_with(segment, sections, name, new)
    for what, left in (
        ("without its first", rows[1:]),
        ("without its last", rows[:-1]),
        ("its last twice", [*rows, *rows[-1:]]),
    ):
        if left != rows:
            yield f"{name} rows", what, *_with(segment, sections, name, [layout.pack(*each) for each in left])


def _with(
    segment: Any, sections: Mapping[str, bytes], name: str, rows: list[bytes]
) -> tuple[bytes, Mapping[str, list[int]]]:
    body = b"".join(rows)
    changed = {**sections, name: body}
    counted = struct.pack(">i", len(rows)) + body
    if name == "producer":
        changed[name] = struct.pack(">hI", 1, crc32c(counted)) + counted
        known = {row[:8] for row in rows}
        size = ROWS["batches"][0].size
        earlier = changed.pop("batches", b"")[PREFACE["batches"] :]
        kept = [row for at in range(0, len(earlier), size) if (row := earlier[at : at + size])[:8] in known]
        if kept:
            changed["batches"] = _sealed(changed[name], kept)
    if name == "batches":
        changed[name] = _sealed(sections["producer"], rows)
    return rebuilt(segment, changed)


def _sealed(producers: bytes, rows: list[bytes]) -> bytes:
    """The section of earlier batches, whose checksum continues that of the producers."""
    counted = struct.pack(">i", len(rows)) + b"".join(rows)
    return struct.pack(">I", crc32c(counted, crc32c(producers[6:]))) + counted


def _of_header(
    segment: Any, sections: Mapping[str, bytes]
) -> Iterator[tuple[str, str, bytes, Mapping[str, list[int]]]]:
    good, table = rebuilt(segment, sections)
    fields = HEAD.unpack_from(good)[1:]
    for place, field in enumerate(HEAD_FIELDS[1:]):
        for what, wrong in numbers(fields[place], struct.calcsize("HHIqqQI"[place])):
            changed = list(fields)
            changed[place] = wrong
            try:
                data, _ = rebuilt(segment, sections, tuple(changed))
            except struct.error:
                continue
            yield f"header.{field}", what, data, table
    flipped = bytearray(good)
    flipped[0] ^= 1
    yield "header.magic", "flipped", bytes(flipped), table
    yield "header rows", "one section less", *rebuilt(segment, {k: v for k, v in sections.items() if k != "producer"})
    swapped = dict(reversed(list(sections.items())))
    yield "header rows", "in another order", *rebuilt(segment, swapped)
    yield "header rows", "bytes behind it", good + b"x", table
    moved = copy.deepcopy(table)
    moved["aborted"][0] += 1
    yield "header rows", "a remote segment of other sections", good, moved


def test_the_table_has_every_section_and_every_field() -> None:
    assert set(ROWS) == {sidecar.INDEX, sidecar.CHECKS, sidecar.ABORTED, *sidecar.STATE}
    for name, (layout, fields) in ROWS.items():
        assert len(layout.unpack(bytes(layout.size))) == len(fields), name


def test_a_rebuilt_sidecar_is_the_writers(full: FullStore) -> None:
    found = segments(full.store)
    assert found
    for base, segment in found.items():
        data, table = rebuilt(segment, sections_of(full.store, segment))
        assert data == full.store.get(ids_of(1).prefix + segment["sidecar"]).data, base
        assert json.loads(json.dumps(table)) == segment["sections"]
