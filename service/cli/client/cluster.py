"""`tidelog cluster`: the cluster's id and its nodes."""

from __future__ import annotations

from typing import Any

import typer

from service.cli.errors import CommandError
from service.cli.kafka import (
    DEFAULT_BOOTSTRAP,
    GRPC_LISTENER,
    HTTP_LISTENER,
    REQUEST_TIMEOUT_S,
    Bootstrap,
    Profile,
    all_topics,
    connect_admin,
    describe_topics,
    outcome,
)
from service.cli.output import AsJson, counted, print_json, print_table

cluster = typer.Typer(no_args_is_help=True, help="Inspect the cluster and its nodes.")


@cluster.callback()
def group() -> None:
    """Keeps `info` a subcommand: typer merges a single command into its group."""


@cluster.command()
def info(as_json: AsJson = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, profile: Profile = None) -> None:
    """Show the cluster's id, its nodes with their listeners, and how many topics there are."""
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
        except CommandError:  # a broker of another kind may forbid it
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
