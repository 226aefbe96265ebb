"""Manifests and pages as bytes: readable JSON, one line for each segment, fields always in the same order.

Keys are written relative to the prefix `<cluster>/topics/<topic>/<topic_id>/`; a key outside it begins with `/`. Reading is
strict: a field that is missing, has the wrong type or breaks an invariant raises a TierCorrupt that names the field; a document
whose `least_reader` is above this version's format raises StoreRefused. Unknown fields are ignored. A page is the same JSON,
gzipped. Before a page is unpacked, its bytes are compared with the length and CRC-32C in the manifest.

Not promised: byte-identical gzip across versions of zlib; compressed bytes are compared only with their own CRC.
"""

from __future__ import annotations

import gzip
import itertools
import zlib
from collections.abc import Callable, Sequence
from typing import TypeVar

from storage_tiers.cold.manifest.documents import FORMAT, LEAST_READER, Fields, check_version, document
from storage_tiers.cold.manifest.model import (
    CommitId,
    Ids,
    Manifest,
    ManifestPage,
    ManifestWriter,
    NewestSidecar,
    Oldest,
    PageKind,
    PageRef,
    Pin,
    RemoteSegment,
    Removed,
    Section,
    Stamp,
    State,
    TombstonedKey,
    oldest_of,
)
from storage_tiers.cold.manifest.transitions import broken
from storage_tiers.errors import TierCorrupt
from storage_tiers.records.checksum import crc32c
from storage_tiers.types import TopicId

T = TypeVar("T")
#: An unpacked page of 8,192 segments takes about 5 MiB; a page that unpacks to more than this is a decompression bomb.
MAX_PAGE_BYTES = 64 << 20
_GZIP_LEVEL = 6


# --- writing ----------------------------------------------------------------------------------------------------------
def encode(manifest: Manifest) -> bytes:
    prefix = manifest.ids.prefix
    sidecar = None
    if manifest.sidecar is not None:
        sidecar = {
            "key": _relative(manifest.sidecar.key, prefix),
            "sections": _sections(manifest.sidecar.sections),
            "alone": manifest.sidecar.alone,
        }
    return document(
        {
            "format": manifest.format,
            "least_reader": LEAST_READER,
            **_ids(manifest.ids),
            "state": manifest.state.value,
            "line": manifest.line,
            "commit": manifest.commit,
            "committed_at": manifest.committed_at,
            "writer": {
                "node_id": manifest.writer.node_id,
                "name": manifest.writer.name,
                "incarnation": manifest.writer.incarnation,
            },
            "incarnation": manifest.incarnation,
            "leader_epoch": manifest.leader_epoch,
            "log_start": manifest.log_start,
            "end": manifest.end,
            "last_record_epoch": manifest.last_record_epoch,
            "swept": manifest.swept,
            "sidecar": sidecar,
            "recent": [list(recent) for recent in manifest.recent],
            "pins": [
                {"name": pin.name, "commit": pin.commit, "log_start": pin.log_start, "end": pin.end}
                for pin in manifest.pins
            ],
            "pages": [_page_ref(ref, prefix) for ref in manifest.pages],
            "segments": [_segment(segment, prefix) for segment in manifest.segments],
            "removed": [_removed(item, prefix) for item in manifest.removed],
            "tombstoned": [
                {"key": _relative(tombstoned.key, prefix), "at": list(tombstoned.at)}
                for tombstoned in manifest.tombstoned
            ],
        }
    )


def encode_page(ids: Ids, page: ManifestPage) -> bytes:
    """The gzipped object of a page."""
    prefix = ids.prefix
    data = document(
        {
            "format": FORMAT,
            "least_reader": LEAST_READER,
            **_ids(ids),
            "kind": page.kind.value,
            "segments": [_segment(segment, prefix) for segment in page.segments],
            "removed": [_removed(item, prefix) for item in page.removed],
            "pages": [_page_ref(ref, prefix) for ref in page.pages],
        }
    )
    return gzip.compress(data, _GZIP_LEVEL, mtime=0)


def _ids(ids: Ids) -> dict[str, object]:
    return {
        "cluster_id": ids.cluster_id,
        "topic": ids.topic,
        "topic_id": str(ids.topic_id),
        "partition": ids.partition,
    }


def _relative(key: str, prefix: str) -> str:
    return key[len(prefix) :] if key.startswith(prefix) else "/" + key


def _sections(sections: Sequence[Section]) -> dict[str, list[int]]:
    return {section.name: [section.position, section.length, section.crc32c] for section in sections}


def _segment(segment: RemoteSegment, prefix: str) -> dict[str, object]:
    fields: dict[str, object] = {
        "base": segment.base,
        "end": segment.end,
        "key": _relative(segment.key, prefix),
        "position": segment.position,
        "length": segment.length,
        "sidecar": _relative(segment.sidecar_key, prefix),
        "sections": _sections(segment.sections),
        "min_timestamp": segment.min_timestamp,
        "max_timestamp": segment.max_timestamp,
        "max_timestamp_offset": segment.max_timestamp_offset,
        "records": segment.records,
        "bytes": segment.bytes,
        "crc32c": segment.crc32c,
        "added": list(segment.added),
    }
    if segment.gap_from is not None:
        fields["gap_from"] = segment.gap_from
    return fields


def _removed(item: Removed, prefix: str) -> dict[str, object]:
    fields: dict[str, object] = {"key": _relative(item.key, prefix)}
    if item.segment is not None:
        fields = _segment(item.segment, prefix)
    fields["removed"] = list(item.at)
    return fields


def _page_ref(ref: PageRef, prefix: str) -> dict[str, object]:
    fields: dict[str, object] = {
        "kind": ref.kind.value,
        "key": _relative(ref.key, prefix),
        "base": ref.base,
        "end": ref.end,
        "count": ref.count,
        "length": ref.length,
        "crc32c": ref.crc32c,
        "min_timestamp": ref.min_timestamp,
        "max_timestamp": ref.max_timestamp,
        "records": ref.records,
        "bytes": ref.bytes,
        "last_commit": ref.last_commit,
    }
    if ref.kind is PageKind.REMOVED:
        fields["first_removed"] = ref.first_removed_ms
    if ref.oldest is not None:
        fields["oldest"] = list(ref.oldest)
        fields["newest"] = ref.newest_ms
    if ref.level:
        fields["level"] = ref.level
    if ref.gap_from is not None:
        fields["gap_from"] = ref.gap_from
    return fields


# --- reading ----------------------------------------------------------------------------------------------------------
def decode(data: bytes, ids: Ids | None = None, *, sound: bool = True) -> Manifest:
    """Decodes a manifest, which must have exactly these `ids`, if given: a manifest under another partition's key is not
    served.

    Raises TierCorrupt if the manifest cannot be parsed, or breaks an invariant. `sound=False` skips the check of invariants,
    for `tidelog fsck`, which reports each fault itself.
    """
    fields = Fields.parse(data, f"the manifest of {ids}" if ids else "a manifest")
    version = check_version(fields)
    found = _read_ids(fields)
    if ids is not None and found != ids:
        raise fields.bad(f"it belongs to {found} with topic id {found.topic_id} of cluster {found.cluster_id}")
    prefix = found.prefix
    writer = fields.object("writer")
    manifest = Manifest(
        ids=found,
        format=version,
        state=_enum(fields, "state", State),
        line=fields.text("line"),
        commit=fields.natural("commit"),
        recent=tuple(CommitId(*pair) for pair in fields.pairs("recent", str)),
        committed_at=fields.number("committed_at"),
        writer=ManifestWriter(writer.number("node_id"), writer.number_or_none("incarnation"), writer.text("name")),
        incarnation=fields.natural("incarnation"),
        leader_epoch=fields.number("leader_epoch"),
        log_start=fields.natural("log_start"),
        end=fields.natural("end"),
        last_record_epoch=fields.number("last_record_epoch"),
        sidecar=_read_sidecar(fields, prefix),
        segments=_each(fields, "segments", prefix, _read_segment),
        removed=_each(fields, "removed", prefix, _read_removed),
        tombstoned=_each(fields, "tombstoned", prefix, _read_tombstoned),
        pins=_each(fields, "pins", prefix, _read_pin),
        pages=_each(fields, "pages", prefix, _read_page_ref),
        swept=fields.natural("swept"),
    )
    fault = broken(manifest) if sound else None
    if fault is not None:
        raise fields.bad(fault)
    return manifest


def decode_page(data: bytes, ids: Ids, ref: PageRef) -> ManifestPage:
    """Decodes a page. Raises TierCorrupt if its bytes do not match the manifest's reference `ref`, or cannot be parsed."""
    where = f"page {ref.key}"
    if len(data) != ref.length or crc32c(data) != ref.crc32c:
        raise TierCorrupt(
            f"{where} has {len(data)} bytes with CRC-32C {crc32c(data)}, its manifest says {ref.length} and {ref.crc32c}"
        )
    fields = Fields.parse(_unpacked(data, where), where)
    check_version(fields)
    if _read_ids(fields) != ids:
        raise fields.bad("it belongs to another partition")
    page = ManifestPage(
        kind=_enum(fields, "kind", PageKind),
        segments=_each(fields, "segments", ids.prefix, _read_segment),
        removed=_each(fields, "removed", ids.prefix, _read_removed),
        pages=_each(fields, "pages", ids.prefix, _read_page_ref),
    )
    fault = _misfit(page, ref)
    if fault is not None:
        raise fields.bad(fault)
    return page


def _misfit(page: ManifestPage, ref: PageRef) -> str | None:
    """The first difference between a page and the manifest's reference to it; None if there is none."""
    if page.kind is not ref.kind or page.count != ref.count:
        return f"it holds {page.count} {page.kind.value} segments, its manifest says {ref.count}"
    if bool(page.pages) != bool(ref.level) or (page.pages and (page.segments or page.removed)):
        return f"it holds {len(page.pages)} pages, its manifest says that it is of level {ref.level}"
    if any(child.kind is not page.kind or child.level for child in page.pages):
        return "it names pages of another kind, or of its own level"
    spans: Sequence[RemoteSegment | PageRef] = page.segments or page.pages
    if page.kind is PageKind.REMOVED or not spans:
        return None
    if (spans[0].base, spans[-1].end) != (ref.base, ref.end):
        return f"its segments do not span [{ref.base}, {ref.end}) as its manifest says"
    for before, after in itertools.pairwise(spans):
        if after.base < before.end or (after.base > before.end and after.gap_from != before.end):
            missing = before.end < after.base
            low, high = sorted((before.end, after.base))
            return f"offsets [{low}, {high}) are in {'none' if missing else 'two'} of its segments"
    oldest = oldest_of(page.segments[0]) if page.segments else page.pages[0].oldest
    if oldest != ref.oldest:
        return f"its first segment is {oldest}, its manifest says {ref.oldest}"
    newest_ms = max(span.newest_ms for span in spans)
    if newest_ms != ref.newest_ms:
        return f"the newest time of its segments is {newest_ms}, its manifest says {ref.newest_ms}"
    return None


def _unpacked(data: bytes, where: str) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    try:
        unpacked = unpacker.decompress(data, MAX_PAGE_BYTES)
    except zlib.error as error:
        raise TierCorrupt(f"{where} is not gzip: {error}") from error
    if unpacker.unconsumed_tail or not unpacker.eof:
        raise TierCorrupt(f"{where} is cut short, or unpacks to more than {MAX_PAGE_BYTES} bytes")
    return unpacked


def _read_ids(fields: Fields) -> Ids:
    try:
        topic_id = TopicId.parse(fields.text("topic_id"))
    except ValueError as error:
        raise fields.bad(f"'topic_id' is {fields.text('topic_id')!r}, not a topic id") from error
    ids = Ids(fields.text("cluster_id"), fields.text("topic"), topic_id, fields.number("partition"))
    try:
        _ = ids.manifest_key
    except ValueError as error:
        raise fields.bad(str(error)) from error
    return ids


E = TypeVar("E", State, PageKind)


def _enum(fields: Fields, name: str, kind: type[E]) -> E:
    try:
        return kind(fields.text(name))
    except ValueError as error:
        known = " or ".join(repr(member.value) for member in kind)
        raise fields.bad(f"{name!r} is {fields.text(name)!r}, not {known}") from error


def _each(fields: Fields, name: str, prefix: str, read: Callable[[Fields, str], T]) -> tuple[T, ...]:
    return tuple(read(item, prefix) for item in fields.objects(name))


def _key(fields: Fields, name: str, prefix: str) -> str:
    text = fields.text(name)
    if not text:
        raise fields.bad(f"{name!r} is empty")
    return text[1:] if text.startswith("/") else prefix + text


def _read_sections(fields: Fields) -> tuple[Section, ...]:
    sections = []
    for name, span in fields.object("sections").items():
        if not isinstance(span, list) or len(span) != 3 or any(type(n) is not int or n < 0 for n in span):
            raise fields.bad(f"section {name!r} is {span!r}, not [position, length, crc32c]")
        sections.append(Section(name, *span))
    return tuple(sections)


def _read_sidecar(fields: Fields, prefix: str) -> NewestSidecar | None:
    if not fields.has("sidecar"):
        return None
    sidecar = fields.object("sidecar")
    return NewestSidecar(_key(sidecar, "key", prefix), _read_sections(sidecar), sidecar.flag("alone"))


def _read_segment(fields: Fields, prefix: str) -> RemoteSegment:
    number, natural = fields.number, fields.natural
    return RemoteSegment(
        base=natural("base"),
        end=natural("end"),
        key=_key(fields, "key", prefix),
        position=natural("position"),
        length=natural("length"),
        sidecar_key=_key(fields, "sidecar", prefix),
        sections=_read_sections(fields),
        min_timestamp=number("min_timestamp"),
        max_timestamp=number("max_timestamp"),
        max_timestamp_offset=natural("max_timestamp_offset"),
        records=natural("records"),
        bytes=natural("bytes"),
        crc32c=natural("crc32c"),
        added=Stamp(*fields.number_pair("added")),
        gap_from=fields.number_or_none("gap_from"),
    )


def _read_removed(fields: Fields, prefix: str) -> Removed:
    at = Stamp(*fields.number_pair("removed"))
    if fields.has("base"):
        return Removed(at, segment=_read_segment(fields, prefix))
    return Removed(at, key=_key(fields, "key", prefix))


def _read_tombstoned(fields: Fields, prefix: str) -> TombstonedKey:
    return TombstonedKey(_key(fields, "key", prefix), Stamp(*fields.number_pair("at")))


def _read_pin(fields: Fields, prefix: str) -> Pin:
    return Pin(fields.text("name"), fields.natural("commit"), fields.natural("log_start"), fields.natural("end"))


def _read_page_ref(fields: Fields, prefix: str) -> PageRef:
    number, natural = fields.number, fields.natural
    kind = _enum(fields, "kind", PageKind)
    return PageRef(
        kind=kind,
        key=_key(fields, "key", prefix),
        base=natural("base"),
        end=natural("end"),
        count=natural("count"),
        length=natural("length"),
        crc32c=natural("crc32c"),
        min_timestamp=number("min_timestamp"),
        max_timestamp=number("max_timestamp"),
        records=natural("records"),
        bytes=natural("bytes"),
        last_commit=natural("last_commit"),
        first_removed_ms=number("first_removed") if kind is PageKind.REMOVED else 0,
        gap_from=fields.number_or_none("gap_from"),
        oldest=Oldest(*fields.numbers("oldest", 3)) if kind is PageKind.LIVE else None,
        newest_ms=number("newest") if kind is PageKind.LIVE else 0,
        level=natural("level") if fields.has("level") else 0,
    )
