"""`tidelog fsck`: verifies that the bucket agrees with its manifests, and reports each difference."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.errors import Unreachable
from service.cli.store import ClusterId, S3Endpoint, S3Region, StoreUrl, opened_store

if TYPE_CHECKING:
    from service.fsck.bucket import FsckScope
    from service.fsck.findings import Report
    from storage_tiers.cold.stores.port import BlockingObjectStore


def fsck(
    store: StoreUrl,
    data_dir: Annotated[str | None, typer.Option(help="Also compare this node's local logs with the bucket.")] = None,
    cluster_id: ClusterId = None,
    topic: Annotated[str | None, typer.Option(help="Only this topic.")] = None,
    quick: Annotated[bool, typer.Option(help="Read only listings and manifests. By default, read every byte.")] = False,
    grace_ms: Annotated[
        int,
        typer.Option(
            help="The age at which an unreferenced object counts as damage. Use the nodes' tidelog.tier.delete.grace.ms."
        ),
    ] = 24 * 3600 * 1000,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    s3_endpoint: S3Endpoint = None,
    s3_region: S3Region = None,
) -> None:
    """Check a store, without a node. Changes nothing. Exit code 0: sound; 1: damaged; 2: the store could not be read."""
    from service.fsck.bucket import FsckScope
    from service.fsck.local import check_local
    from storage_tiers.errors import LogError

    if data_dir is not None and quick:
        raise typer.BadParameter("it compares bytes; leave --quick out", param_hint="--data-dir")
    scope = FsckScope(cluster_id, topic, quick, grace_ms)
    try:
        with opened_store(store, s3_endpoint, s3_region) as opened:
            report = _checked(opened, scope, quiet=as_json)
            if data_dir is not None:
                check_local(opened, data_dir, report)
    except (LogError, OSError) as error:
        raise Unreachable(f"the store could not be checked: {error}") from None
    if not report.clusters and not report.damaged:
        raise Unreachable(f"there is no cluster in {store}; correct its bucket or prefix")
    if as_json:
        typer.echo(json.dumps(_as_json(report), indent=1))
    else:
        _print(report, quick)
    raise typer.Exit(1 if report.damaged else 0)


def _checked(opened: BlockingObjectStore, scope: FsckScope, *, quiet: bool) -> Report:
    """Checks the store, with a progress bar on a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    from service.fsck.bucket import check_bucket
    from storage_tiers.clock import SystemClock

    now_ms = SystemClock().unix_ms()
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        return check_bucket(opened, scope, now_ms=now_ms)
    with Progress(console=console, transient=True) as bars:
        bar = bars.add_task("segments", total=None)

        def progress(done: int, known: int) -> None:
            bars.update(bar, completed=done, total=known)

        return check_bucket(opened, scope, now_ms=now_ms, progress=progress)


def _as_json(report: Report) -> dict[str, object]:
    return {
        "sound": not report.damaged,
        "clusters": report.clusters,
        "partitions": report.partitions,
        "segments": report.segments,
        "objects": report.objects,
        "bytes_read": report.bytes_read,
        "findings": [
            {"kind": f.kind.name.lower(), "key": f.key, "detail": f.detail, "damage": f.damage} for f in report.findings
        ],
    }


def _print(report: Report, quick: bool) -> None:
    for finding in report.findings:
        weight, kind = "DAMAGE" if finding.damage else "note", finding.kind
        typer.echo(f"{weight}  {kind.value} ({kind.name.lower()}): {finding.key}\n        {finding.detail}")
    looked = "listings and manifests" if quick else f"{report.bytes_read:,} bytes"
    verdict = "damaged" if report.damaged else "sound"
    typer.echo(
        f"{verdict}: {_count(report.clusters, 'cluster')}, {_count(report.partitions, 'partition')}, "
        f"{_count(report.segments, 'segment')}, {_count(report.objects, 'object')}; read {looked}"
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
