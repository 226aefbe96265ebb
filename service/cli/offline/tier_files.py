"""Dumps the bucket's small objects as lines. Reads them from local files: downloaded copies, files of a directory store, or
the manifest in a partition's directory."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from service.cli.offline.dump_line import Line, damage
from service.cli.offline.log_files import snapshot_lines
from storage_tiers.cold.manifest.json import decode
from storage_tiers.cold.manifest.model import Manifest, RemoteSegment
from storage_tiers.cold.segments import sidecar

#: Documents other than manifests.
PLAIN_DOCUMENTS = ("cluster.json", "topic.json", "endpoints.json", "home.json")


def dump_sidecar(path: Path, *, deep: bool) -> Iterator[Line]:
    """Dumps the header, the table, the leader epochs and the aborted transactions. With `deep`, also the index, the CRC-32C of
    each MiB and the producers."""
    data = path.read_bytes()
    found = sidecar.parse(data, path.name)
    yield Line(
        "sidecar",
        {"base": found.base, "end": found.end, "segment_length": found.length, "segment_crc32c": found.crc32c},
    )
    for section in sidecar.read_table(data, path.name):
        yield Line("section", section._asdict())
    for epoch in found.epochs:
        yield Line("leader_epoch", epoch._asdict())
    for aborted in found.aborted:
        yield Line("aborted_transaction", {name: getattr(aborted, name) for name in aborted.__dataclass_fields__})
    if deep:
        for row in found.index:
            yield Line("index_row", row._asdict(), prefix="| ")
        for number, crc in enumerate(found.mib_crcs):
            yield Line("check", {"mebibyte": number, "crc32c": crc}, prefix="| ")
        if found.producer_state:
            yield from snapshot_lines(found.producer_state)


def dump_document(path: Path) -> Iterator[Line]:
    """Dumps a manifest, segment by segment, or another document, field by field."""
    data = path.read_bytes()
    if path.name in PLAIN_DOCUMENTS:
        yield from _plain(data, "document")
        return
    manifest = decode(data)
    yield _manifest_line(manifest)
    for page in manifest.pages:
        yield Line(
            "page_reference",
            {"of": page.kind.value, "base": page.base, "end": page.end, "count": page.count, "key": page.key},
        )
    for segment in manifest.segments:
        yield _segment_line("segment", segment)
    for removed in manifest.removed:
        at = {"removed_by_commit": removed.at.commit, "removed_ms": removed.at.time_ms}
        if removed.segment is None:
            yield Line("removed", {"key": removed.key, **at})
        else:
            yield _segment_line("removed", removed.segment, **at)
    for tombstoned in manifest.tombstoned:
        yield Line("tombstoned", {"key": tombstoned.key, "commit": tombstoned.at.commit})
    for pin in manifest.pins:
        yield Line("pin", {name: getattr(pin, name) for name in pin.__dataclass_fields__})


def dump_page(path: Path) -> Iterator[Line]:
    """Dumps a manifest page. Does not verify the page's checksum, which is in the manifest."""
    try:
        data = gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        yield damage(f"the file is not gzip: {error}")
        return
    yield from _plain(data, "page")


def _manifest_line(manifest: Manifest) -> Line:
    return Line(
        "manifest",
        {
            "cluster_id": manifest.ids.cluster_id,
            "topic": manifest.ids.topic,
            "topic_id": str(manifest.ids.topic_id),
            "partition": manifest.ids.partition,
            "state": manifest.state.value,
            "commit": manifest.commit,
            "committed_at": manifest.committed_at,
            "writer": manifest.writer.node_id,
            "incarnation": manifest.incarnation,
            "leader_epoch": manifest.leader_epoch,
            "log_start": manifest.log_start,
            "end": manifest.end,
        },
    )


def _segment_line(kind: str, segment: RemoteSegment, **more: Any) -> Line:
    names = ("base", "end", "key", "position", "length", "min_timestamp", "max_timestamp", "records", "crc32c")
    return Line(kind, {**{name: getattr(segment, name) for name in names}, "added": segment.added.commit, **more})


def _plain(data: bytes, kind: str) -> Iterator[Line]:
    try:
        document = json.loads(data)
    except ValueError as error:
        yield damage(f"the file is not JSON: {error}")
        return
    if not isinstance(document, dict):
        yield damage("the file is not a JSON object")
        return
    lists = {name: value for name, value in document.items() if isinstance(value, list)}
    yield Line(kind, {name: value for name, value in document.items() if name not in lists})
    for name, items in lists.items():
        for item in items:
            yield Line(name, item if isinstance(item, dict) else {"item": item}, prefix="| ")
