"""Kafka Streams on the node: its own smoke test, which counts, sums, joins and windows 20,000 records and checks every result.

Streams reads in groups that rebalance cooperatively, writes through repartition topics and changelogs that it creates, and with
`exactly_once_v2` in transactions that carry its offsets.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support import kafka_jars
from tests.support.node import Node

#: The topics that the smoke test expects, as Kafka's system tests create them.
TOPICS = (
    "data", "fk", "echo", "max", "min", "min-suppressed", "min-raw", "dif", "sum", "sws-raw", "sws-suppressed", "cnt", "avg",
    "tagg", "wcnt",
)  # fmt: skip
PARTITIONS = 5
SECONDS = 400
SMOKE_TEST = "org.apache.kafka.streams.tests.StreamsSmokeTest"
SOON: dict[str, str | int | bool] = {"group.initial.rebalance.delay.ms": 0}


@pytest.mark.differential
@pytest.mark.timeout(600)
def test_kafkas_own_smoke_test_of_streams_succeeds(tmp_path: Path) -> None:
    jars = kafka_jars.streams()
    with Node(tmp_path, settings=SOON) as node:
        admin = AdminClient({"bootstrap.servers": node.kafka})
        for created in admin.create_topics([NewTopic(each, PARTITIONS, 1) for each in TOPICS]).values():
            created.result(30)
        configs = tmp_path / "streams.properties"
        configs.write_text(
            f"bootstrap.servers={node.kafka}\nstate.dir={tmp_path / 'state'}\nprocessing.guarantee=exactly_once_v2\n"
            "num.stream.threads=3\nsession.timeout.ms=10000\nacceptable.recovery.lag=9223372036854775807\n"
        )
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        command = ["java", quiet, "-cp", jars, SMOKE_TEST, str(configs)]
        with (tmp_path / "process.log").open("w") as output:
            application = subprocess.Popen([*command, "process"], stdout=output, stderr=subprocess.STDOUT)
            try:
                driver = subprocess.run([*command, "run"], capture_output=True, text=True, timeout=SECONDS, check=False)
            finally:
                application.terminate()
                application.wait(60)
    end = driver.stdout[-3000:]
    assert driver.returncode == 0, end
    assert "ALL-RECORDS-DELIVERED" in end, end
    assert "\nSUCCESS\n" in end, end
