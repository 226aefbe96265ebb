"""`tidelog restore`: rebuilds a lost data directory from the store, without starting the node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.store import S3Endpoint, S3Region, StoreUrl

if TYPE_CHECKING:
    from service.takeover.run import RecoveryPoint

#: The maximum number of topics with empty partitions that the output names.
NAMED_TOPICS = 10


def restore(
    cluster_id: Annotated[
        str,
        typer.Argument(
            metavar="CLUSTER_ID",
            help="The cluster's id, as `tidelog cold ls` prints it. If it begins with a dash, write it after --.",
        ),
    ],
    store: StoreUrl,
    data_dir: Annotated[Path, typer.Option(help="An empty directory.")] = Path("data/node"),
    node_id: Annotated[int, typer.Option(help="The id of the lost node.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the recovery points.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Verify every byte in the store first, as fsck does.")
    ] = False,
    s3_endpoint: S3Endpoint = None,
    s3_region: S3Region = None,
) -> None:
    """Rebuild a lost node's data directory from the store alone. The old node must be stopped.

    Prints each partition's recovery point, where clients continue. Acknowledged records beyond it are lost. Partitions with
    nothing in the store start empty, and are counted by topic."""
    import asyncio

    from service.offline.restore import restore as restored
    from service.settings.node_settings import NodeSettings
    from storage_tiers.errors import LogError

    settings = NodeSettings(
        data_dir=data_dir,
        store=store,
        node_id=node_id,
        verify=verify,
        s3_endpoint=s3_endpoint,
        s3_region=s3_region,
    )
    try:
        points = asyncio.run(restored(settings, cluster_id, dry_run=dry_run))
    except LogError as error:
        typer.echo(f"tidelog: {error}", err=True)
        raise typer.Exit(1) from None
    if verify:
        typer.echo(f"sound: every byte of cluster {cluster_id} in the store was verified")
    for line in recovered(points):
        typer.echo(line)
    done = "would become" if dry_run else "is now"
    count = f"{len(points)} partition{'' if len(points) == 1 else 's'}"
    typer.echo(f"{data_dir} {done} node {node_id} of cluster {cluster_id}: {count}")


def recovered(points: Sequence[RecoveryPoint]) -> Iterator[str]:
    """Yields a line for each partition with records, and one line for all other partitions."""
    empty = Counter(point.topic for point in points if not point.claimed.end)
    for point in points:
        found = point.claimed
        if found.end:
            moment = datetime.fromtimestamp(found.committed_at / 1000, UTC).isoformat(timespec="seconds")
            yield f"{point.topic}-{point.partition}: offsets [{found.log_start}, {found.end}), as of {moment}"
    if empty:
        named = [f"{topic} ({count})" for topic, count in sorted(empty.items())[:NAMED_TOPICS]]
        more = [f"{len(empty) - len(named)} more topics"] if len(empty) > len(named) else []
        count = empty.total()
        partitions = "1 partition is" if count == 1 else f"{count} partitions are"
        yield f"{partitions} empty, with nothing in the store: {', '.join([*named, *more])}"
