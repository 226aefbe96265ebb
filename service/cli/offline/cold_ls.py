"""`tidelog cold ls`: the contents of the manifests in a bucket, as a table or as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.errors import CommandError
from service.cli.output import AsJson, counted, moment, print_json, print_table, size
from service.cli.store import ClusterId, S3Endpoint, S3Region, StoreUrl, opened_store

if TYPE_CHECKING:
    from service.cli.offline.cold_listing import ColdPartition
    from storage_tiers.cold.manifest.model import RemoteSegment


def ls(
    store: StoreUrl,
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", show_default=False)] = None,
    segments: Annotated[bool, typer.Option("--segments", "-l", help="Also print a line per segment.")] = False,
    cluster_id: ClusterId = None,
    s3_endpoint: S3Endpoint = None,
    s3_region: S3Region = None,
    as_json: AsJson = False,
) -> None:
    """List the manifests: partitions with their offsets, sizes and times; segments with --segments or --json.

    Exit code 1 if a manifest cannot be read.
    """
    from service.cli.offline.cold_listing import cold_partitions

    _check_names(topic, cluster_id)
    with opened_store(store, s3_endpoint, s3_region) as opened:
        found = list(cold_partitions(opened, cluster_id=cluster_id, topic=topic, with_segments=segments or as_json))
    if as_json:
        print_json({"store": store, "partitions": [_json(part) for part in found], "totals": _totals(found)})
    else:
        _print_partitions(found)
        if segments:
            _print_segments(found)
        totals = _totals(found)
        typer.echo(
            f"{_of_cluster(found)}{counted(totals['partitions'], 'partition')}, {counted(totals['segments'], 'segment')}, "
            f"{counted(totals['records'], 'record')}, {size(totals['bytes'])}"
        )
    damaged = [part for part in found if part.fault]
    if damaged:
        raise CommandError("; ".join(part.fault for part in damaged))
    if topic is not None and not found:
        raise CommandError(f"{store} has no manifest of topic {topic}")


def _check_names(topic: str | None, cluster_id: str | None) -> None:
    from storage_tiers.cold.manifest import keys

    try:
        keys.topic_prefix(cluster_id or "any", topic or "any")
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _totals(found: Sequence[ColdPartition]) -> Mapping[str, int]:
    return {
        "partitions": len(found),
        "segments": sum(part.segment_count for part in found),
        "records": sum(part.records for part in found),
        "bytes": sum(part.bytes for part in found),
    }


def _of_cluster(found: Sequence[ColdPartition]) -> str:
    """The cluster's id if there is one cluster. For several clusters, the table has a column."""
    clusters = {part.cluster_id for part in found}
    return f"cluster {clusters.pop()}: " if len(clusters) == 1 else ""


# --- text --------------------------------------------------------------------------------------------------------------
def _print_partitions(found: Sequence[ColdPartition]) -> None:
    many = len({part.cluster_id for part in found}) > 1
    columns = ["TOPIC", "TOPIC ID", "PARTITION", "STATE", "START", "END", "SEGMENTS", "RECORDS", "SIZE"]
    columns += ["FROM", "TO", "COMMIT", "COMMITTED", "REMOVED", "TOMBSTONED", "PINS"]
    rows = [_row(part) for part in found]
    if many:
        columns.insert(0, "CLUSTER")
        rows = [[part.cluster_id, *row] for part, row in zip(found, rows, strict=True)]
    print_table(columns, rows)


def _row(part: ColdPartition) -> list[object]:
    manifest = part.manifest
    if manifest is None:
        return [part.topic, part.topic_id, part.partition, "damaged", *(None,) * 12]
    first, last = part.time_span
    return [
        part.topic,
        part.topic_id,
        part.partition,
        "replaced" if manifest.state.value == "live" and part.current is False else manifest.state.value,
        manifest.log_start,
        manifest.end,
        part.segment_count,
        part.records,
        size(part.bytes),
        moment(first),
        moment(last),
        manifest.commit,
        moment(manifest.committed_at),
        part.removed_count,
        len(manifest.tombstoned),
        len(manifest.pins),
    ]


def _print_segments(found: Sequence[ColdPartition]) -> None:
    typer.echo()
    print_table(
        ("PARTITION", "BASE", "END", "RECORDS", "SIZE", "FROM", "TO", "COMMIT", "ADDED", "KEY"),
        [
            (
                f"{part.topic}-{part.partition}",
                segment.base,
                segment.end,
                segment.records,
                size(segment.length),
                moment(segment.min_timestamp),
                moment(segment.max_timestamp),
                segment.added.commit,
                moment(segment.added.time_ms),
                segment.key,
            )
            for part in found
            for segment in part.segments
        ],
    )
    typer.echo()


# --- JSON --------------------------------------------------------------------------------------------------------------
def _json(part: ColdPartition) -> Mapping[str, Any]:
    fields: dict[str, Any] = {
        "cluster_id": part.cluster_id,
        "topic": part.topic,
        "topic_id": part.topic_id,
        "partition": part.partition,
        "current": part.current,
    }
    manifest = part.manifest
    if manifest is None:
        return {**fields, "damage": part.fault}
    return {
        **fields,
        "state": manifest.state.value,
        "log_start": manifest.log_start,
        "end": manifest.end,
        "leader_epoch": manifest.leader_epoch,
        "incarnation": manifest.incarnation,
        "commit": manifest.commit,
        "committed_at": manifest.committed_at,
        "records": part.records,
        "bytes": part.bytes,
        "segments": [_segment(segment) for segment in part.segments],
        "removed": part.removed_count,
        "tombstoned": len(manifest.tombstoned),
        "pins": [{"name": p.name, "commit": p.commit, "log_start": p.log_start, "end": p.end} for p in manifest.pins],
    }


def _segment(segment: RemoteSegment) -> Mapping[str, Any]:
    return {
        "base": segment.base,
        "end": segment.end,
        "key": segment.key,
        "position": segment.position,
        "length": segment.length,
        "sidecar_key": segment.sidecar_key,
        "records": segment.records,
        "bytes": segment.bytes,
        "min_timestamp": segment.min_timestamp,
        "max_timestamp": segment.max_timestamp,
        "crc32c": segment.crc32c,
        "added_commit": segment.added.commit,
        "added_ms": segment.added.time_ms,
    }
