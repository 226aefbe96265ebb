"""All commands but `serve`, which `main.py` adds itself."""

from __future__ import annotations

import typer

from service.cli.client.cluster import cluster
from service.cli.client.cluster_moves import drain, move, rebalance
from service.cli.client.configs import configs
from service.cli.client.consume import consume
from service.cli.client.group import group
from service.cli.client.perf import perf
from service.cli.client.produce import produce
from service.cli.client.topic import topic
from service.cli.client.txn import txn
from service.cli.cold import cold
from service.cli.offline.fsck import fsck
from service.cli.offline.log import log
from service.cli.offline.restore import restore
from service.cli.top.command import top
from service.cli.up import up


def add_commands(app: typer.Typer) -> None:
    app.command()(top)
    app.add_typer(topic, name="topic")
    app.add_typer(configs, name="configs")
    cluster.command()(move)
    cluster.command()(drain)
    cluster.command()(rebalance)
    cluster.command()(up)
    app.add_typer(cluster, name="cluster")
    app.add_typer(group, name="group")
    app.add_typer(txn, name="txn")
    app.command()(produce)
    app.command()(consume)
    app.add_typer(perf, name="perf")
    app.add_typer(log, name="log")
    app.add_typer(cold, name="cold")
    app.command()(fsck)
    app.command()(restore)
