"""`tidelog cold`: lists the manifests in a bucket, and repairs them after the bucket has gone backwards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.completion import complete_topic
from service.cli.errors import CommandError
from service.cli.kafka import DEFAULT_BOOTSTRAP, Bootstrap, Profile
from service.cli.offline.cold_ls import ls
from service.cli.output import AsJson, counted, print_json
from service.cli.store import S3Endpoint, S3Region

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from service.cli.repair_answers import Loss, PartitionRepair

cold = typer.Typer(no_args_is_help=True, help="List the manifests in a bucket, and repair them.")
cold.command()(ls)

AcceptLoss = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PARTITION:START-END",
        help="Give up these offsets: exactly those that the command printed without --apply.",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        help="The data directory of a stopped node: repair without the node. Needs --store.", show_default=False
    ),
]
Store = Annotated[str | None, typer.Option("--store", "-s", metavar="URL", help="With --data-dir: the node's store.")]


@cold.command()
def repair(
    topic: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", show_default=False, autocompletion=complete_topic)
    ] = None,
    cluster: Annotated[bool, typer.Option("--cluster", help="All topics instead of one.")] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Commit the repair. Without it, only show it.")] = False,
    accept_loss: AcceptLoss = None,
    data_dir: DataDir = None,
    store: Store = None,
    s3_endpoint: S3Endpoint = None,
    s3_region: S3Region = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    profile: Profile = None,
) -> None:
    """Repair manifests that a bucket has lost, or has only in an older version, through the node that saw the newer one.

    A bucket shows less than the node has seen if it was restored, was copied in the wrong order, or has lost an object. The
    node then deletes and evicts nothing there. This command rewrites cluster.json (with --cluster) and topic.json, verifies
    every object that the newest known manifests name, and replaces missing objects at the end from the local log. Then it
    commits the manifests, as the start of a new history of commits. It does the same if a manifest exists but its objects are
    gone. If offsets in the middle are lost, it prints them and changes nothing, unless --accept-loss gives up exactly those.
    Exit code 1 if a repair is impossible.
    """
    from service.cli.client.repair import repairs
    from service.cli.kafka import all_topics, connect_admin, grpc_address, grpc_addresses
    from service.cli.offline.repair import repairs_offline
    from service.settings.node_settings import NodeSettings

    if (topic is None) != cluster:
        raise typer.BadParameter("name one topic, or give --cluster for all")
    if accept_loss and topic is None:
        raise typer.BadParameter("losses are accepted topic by topic: name the topic", param_hint="--accept-loss")
    losses = _losses(accept_loss or ())
    if (data_dir is None) != (store is None):
        raise typer.BadParameter("--data-dir and --store are for a stopped node: give both, or neither")
    if data_dir is not None and store is not None:
        settings = NodeSettings(data_dir=data_dir, store=store, s3_endpoint=s3_endpoint, s3_region=s3_region)
        answers = repairs_offline(settings, topic, apply=apply, losses=losses)
    else:
        admin = connect_admin(bootstrap)
        names = [topic] if topic is not None else all_topics(bootstrap, admin)
        partitions = _partitions(bootstrap, admin, names)
        _check_losses(losses, partitions)
        home, leaders = grpc_address(bootstrap, admin), grpc_addresses(bootstrap, admin)
        led = [(name, number, leaders.get(leader, home)) for name, number, leader in partitions]
        answers = repairs(home, led, cluster=cluster, apply=apply, losses=losses)
    _print(answers, apply=apply, as_json=as_json)


def _print(answers: Iterable[PartitionRepair], *, apply: bool, as_json: bool) -> None:
    """Prints each repair when it is known, or all repairs as JSON. Raises CommandError if a repair is impossible."""
    found = []
    for each in answers:
        found.append(each)
        if not as_json:
            typer.echo(each.line)
    if as_json:
        print_json({"applied": apply, "partitions": [each.as_json() for each in found]})
    elif not apply and any(each.summary for each in found):
        typer.echo("Nothing was changed. Run it again with --apply to commit this.")
    if refused := sum(bool(each.refused) for each in found):
        raise CommandError(f"{counted(refused, 'repair')} cannot be made")


def _losses(texts: Sequence[str]) -> list[Loss]:
    from service.cli.repair_answers import Loss

    try:
        return [Loss.parse(text) for text in texts]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--accept-loss") from None


def _check_losses(losses: Sequence[Loss], partitions: Sequence[tuple[str, int, int]]) -> None:
    for loss in losses:
        if loss.partition not in {number for _, number, _ in partitions}:
            raise CommandError(f"--accept-loss names partition {loss.partition}, which does not exist")


def _partitions(bootstrap: str, admin: AdminClient, topics: Sequence[str]) -> list[tuple[str, int, int]]:
    """Topic, number and leader's node id of each partition. The id is -1 if there is no leader."""
    from service.cli.kafka import describe_topics

    described = describe_topics(bootstrap, admin, topics)
    return [
        (found.name, part.id, -1 if part.leader is None else part.leader.id)
        for found in described
        for part in found.partitions
    ]
