"""`tidelog cluster`: shows the cluster's id, its nodes and their state, and removes brokers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from service.cli.client.cluster_status import PlacedPartition, status_of
from service.cli.client.move_requests import moving, unregister_broker
from service.cli.errors import CommandError
from service.cli.kafka import (
    DEFAULT_BOOTSTRAP,
    GRPC_LISTENER,
    HTTP_LISTENER,
    REQUEST_TIMEOUT_S,
    Bootstrap,
    Profile,
    all_topics,
    as_command_error,
    connect_admin,
    describe_topics,
    outcome,
)
from service.cli.listener import require_reachable
from service.cli.output import AsJson, counted, print_json, print_table

cluster = typer.Typer(no_args_is_help=True, help="Inspect the cluster, move its partitions, or start one for tests.")

#: The maximum number of partitions without a leader, and of moving partitions, that the text below the table names.
NAMED = 10


@cluster.command()
def info(as_json: AsJson = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, profile: Profile = None) -> None:
    """Show the cluster's id, its nodes with their listeners, and the number of topics."""
    from confluent_kafka.admin import ConfigResource, ResourceType

    admin = connect_admin(bootstrap)
    described = admin.describe_cluster(request_timeout=REQUEST_TIMEOUT_S)
    found = outcome(bootstrap, described, "cannot describe the cluster")
    topics = describe_topics(bootstrap, admin, all_topics(bootstrap, admin))
    nodes: list[dict[str, Any]] = []
    for node in sorted(found.nodes, key=lambda node: node.id):
        resource = ConfigResource(ResourceType.BROKER, str(node.id))
        future = admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)[resource]
        try:
            configs = outcome(bootstrap, future, f"cannot describe the configs of node {node.id}")
        except CommandError:  # a broker that is not tidelog may forbid it
            configs = {}
        listeners = {name: configs[name].value if name in configs else None for name in (GRPC_LISTENER, HTTP_LISTENER)}
        nodes.append(
            {
                "id": node.id,
                "kafka": f"{node.host}:{node.port}",
                "grpc": listeners[GRPC_LISTENER],
                "http": listeners[HTTP_LISTENER],
                "rack": node.rack,
                "controller": found.controller is not None and found.controller.id == node.id,
            }
        )
    partitions = sum(len(each.partitions) for each in topics)
    if as_json:
        print_json({"cluster_id": found.cluster_id, "nodes": nodes, "topics": len(topics), "partitions": partitions})
        return
    typer.echo(
        f"cluster {found.cluster_id}: {counted(len(nodes), 'node')}, {counted(len(topics), 'topic')}, "
        f"{counted(partitions, 'partition')}"
    )
    columns = ("NODE", "KAFKA", "GRPC", "HTTP", "RACK", "CONTROLLER")
    print_table(columns, [(*list(each.values())[:5], "yes" if each["controller"] else "no") for each in nodes])


@cluster.command()
def status(as_json: AsJson = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, profile: Profile = None) -> None:
    """Show which brokers are ready and which are away, the controller, and how many partitions each leads and holds."""
    from confluent_kafka import KafkaException

    admin = connect_admin(bootstrap)
    try:
        found = admin.list_topics(timeout=REQUEST_TIMEOUT_S)
    except KafkaException as error:
        raise as_command_error(bootstrap, error, "cannot describe the cluster") from None
    state = status_of(
        {broker: f"{each.host}:{each.port}" for broker, each in found.brokers.items()},
        found.controller_id,
        (
            PlacedPartition(name, partition.id, partition.leader, partition.replicas)
            for name, topic in found.topics.items()
            for partition in topic.partitions.values()
        ),
    )
    targets = sorted(moving(require_reachable(bootstrap)).items())
    if as_json:
        moves = [{"topic": topic, "partition": number, "to": target} for (topic, number), target in targets]
        brokers = [each._asdict() for each in state.brokers]
        print_json({"brokers": brokers, "leaderless": state.leaderless, "moving": moves})
        return
    columns = ("BROKER", "KAFKA", "STATE", "CONTROLLER", "LEADS", "REPLICAS")
    print_table(columns, [(*each[:3], "yes" if each.controller else "no", *each[4:]) for each in state.brokers])
    if state.leaderless:
        typer.echo(f"{counted(len(state.leaderless), 'partition')} without a leader: {_first(state.leaderless)}")
    for broker in state.without_disk:
        typer.echo(
            f"broker {broker} runs without the disk of its partitions; start it with its first --data-dir, or, if that is "
            "lost, see broker.disk_replaced in docs/operations.md"
        )
    if targets:
        named = [f"{topic}-{number} to broker {target}" for (topic, number), target in targets]
        typer.echo(f"{counted(len(named), 'partition')} moving: {_first(named)}")


@cluster.command()
def unregister(
    broker: Annotated[int, typer.Argument(metavar="BROKER", min=0)],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    profile: Profile = None,
) -> None:
    """Remove a stopped broker that holds no partition from the cluster. It joins again when it is started."""
    unregister_broker(require_reachable(bootstrap), broker)
    typer.echo(f"broker {broker} is no longer part of the cluster")


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + ("" if len(names) <= NAMED else ", …")
