"""kill -9 at random moments while a compacted topic is written and cleaned: the newest value of each key is never lost and an
older one never returns, on the local disk alone and with segments offloaded and evicted meanwhile.

Kills hit the cleaner between any two of its steps. A record that was sent but not acknowledged may be there or not.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.faults.clients import until
from tests.faults.compacted_table import CONFIGS, TOPIC, Table
from tests.faults.processes import kill_node
from tests.support.node import Node

SEED = int(os.environ.get("TIDELOG_FAULT_SEED", "20240601"))
SETTINGS: dict[str, str | int | bool] = {"log.cleaner.backoff.ms": 1, "log.retention.check.interval.ms": 200}
A_ROUND = 600
#: Deaths in `make faults`; a longer run sets the variable.
ROUNDS = int(os.environ.get("TIDELOG_FAULT_DEATHS", "4"))
TIERS = {
    "local": {"remote.storage.enable": "false"},
    "kept in both tiers": {"local.retention.ms": "-1"},
    "evicted": {"local.retention.bytes": "20000"},
}


def run(table: Table, node: Node, rounds: int) -> None:
    for _ in range(rounds):
        producer = table.producer()
        table.write(producer, A_ROUND)
        # Waits for no condition: the random moment is the purpose.
        time.sleep(table.rng.uniform(0, 1.0))
        kill_node(node.pid)
        node.kill()
        node.start()
        assert producer.flush(60) == 0
        table.judge()


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.parametrize("tiers", TIERS)
def test_a_table_survives_kills_while_it_is_compacted(tmp_path: Path, tiers: str) -> None:
    print(f"TIDELOG_FAULT_SEED={SEED}")
    with Node(tmp_path, settings=SETTINGS) as node:
        admin = AdminClient({"bootstrap.servers": node.kafka})
        admin.create_topics([NewTopic(TOPIC, 1, 1, config={**CONFIGS, **TIERS[tiers]})])[TOPIC].result(30)
        table = Table(node.kafka, random.Random(SEED))
        run(table, node, ROUNDS)
        until(lambda: "log.cleaned" in node.output_path.read_text(), "the topic is compacted")
        table.judge()
        store, data_dir = node.store, str(node.data_dir)
    if tiers != "local":
        command = (sys.executable, "-m", "service.cli.main", "fsck", "--data-dir", data_dir, "--store", store)
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
