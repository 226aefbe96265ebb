"""Kafka's own tools print the same on a node as on Apache Kafka, except for the differences in the table."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.clients import tools
from tests.service.cli.support import tidelog
from tests.support import kafka_jars
from tests.support.apache_kafka import ApacheKafka
from tests.support.children import start_child
from tests.support.clients import consume, create, produce
from tests.support.node import Node
from tests.support.talker import Talker

TOOL_SECONDS = 60


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node without a store, so that its defaults are Kafka's."""
    with Node(tmp_path_factory.mktemp("tools"), store="none") as node:
        yield node


def test_kafkas_tools_print_the_same_as_on_apache_kafka(plain: Node, java: Talker, tmp_path: Path) -> None:
    expected = tools.APACHE_KAFKA.read_text()
    for difference in tools.DIFFERENCES:
        expected, times = re.subn(difference.kafkas, difference.instead, expected, flags=re.MULTILINE)
        assert times > 0, f"no longer different: {difference}"
    printed = tools.text(tools.run(java, plain.kafka, plain.data_dir, tmp_path))
    for ours, why in tools.OURS:
        printed, times = re.subn(ours, "", printed, flags=re.MULTILINE)
        assert times > 0, f"no longer printed: {why}"
    assert printed.split("$ ") == expected.split("$ ")


def test_every_tool_of_kafka_is_run() -> None:
    asked = {line.split()[0] for line in tools.COMMANDS.strip().splitlines() if line.startswith("kafka-")}
    assert asked == set(tools.CLASSES)


def test_offsets_that_kafkas_tool_exports_are_imported(plain: Node, java: Talker, tmp_path: Path) -> None:
    create(plain, "moving", 2, {})
    produce(plain, "moving", 10)
    groups = ("first", "second")
    reset = ("kafka-consumer-groups", "--reset-offsets", "--to-offset", "2", "--topic", "moving:0,1", "--dry-run")

    def exported(*named: str) -> Path:
        words = [*reset, "--export", *(word for name in named for word in ("--group", name))]
        answer = java.ask(
            command="tool", tool=tools.CLASSES[words[0]], arguments=["--bootstrap-server", plain.kafka, *words[1:]]
        )
        path = tmp_path / "-".join(named)
        path.write_text(answer["printed"])
        return path

    for path, columns in ((exported("first"), 3), (exported(*groups), 4)):
        lines = path.read_text().split()
        assert lines and all(len(line.split(",")) == columns for line in lines), lines
        ran = tidelog("group", "reset-offsets", "first", "--from-file", path, "--json", "-b", plain.kafka)
        assert ran.code == 0, ran.err
        assert [(row["topic"], row["partition"], row["offset"]) for row in ran.json] == [
            ("moving", 0, 2),
            ("moving", 1, 2),
        ]


#: Runs of the tools on Apache Kafka before the test fails.
ATTEMPTS = 3


@pytest.mark.differential
def test_apache_kafka_still_prints_the_recorded_output(java: Talker, tmp_path: Path) -> None:
    """One success in ATTEMPTS is enough: Kafka acknowledges an alteration before applying it, and briefly shows half of it."""
    wanted = tools.APACHE_KAFKA.read_text()
    for attempt in range(ATTEMPTS):
        with ApacheKafka(tmp_path / f"kafka-{attempt}", jvm=kafka_jars.QUICK_START) as kafka:
            printed = tools.text(tools.run(java, kafka.address, kafka.data_dir, tmp_path))
        if printed == wanted:
            return
    assert printed.split("$ ") == wanted.split("$ ")


def test_kafkas_test_of_clients_and_brokers_passes(plain: Node, java: Talker) -> None:
    """The tool writes, reads under assign(), looks up offsets by time, creates topics and describes configs."""
    features = ("create-topics", "offsets-for-times", "cluster-id", "describe-configs", "idempotent-producer")
    words = ["--bootstrap-server", plain.kafka, "--topic", "compatible", "--num-cluster-nodes", "1"]
    for feature in features:
        words += [f"--{feature}-supported", "true"]
    words += ["--describe-acls-supported", "false", "--expect-record-too-large-exception", "false"]
    create(plain, "compatible", 1, {})
    answer = java.ask(command="tool", tool="org.apache.kafka.tools.ClientCompatibilityTest", arguments=words)
    assert (answer["status"], "SUCCESS" in answer["printed"]) == (0, True), answer["printed"]


def test_the_verifiable_producer_gets_an_answer_for_every_record(plain: Node) -> None:
    """The tool writes 0, 1, 2 ... and reports each acknowledgement. It exits its process, so it needs a process of its own."""
    create(plain, "verified", 1, {})
    printed = kafka_jars.run_tool(
        "org.apache.kafka.tools.VerifiableProducer",
        *("--bootstrap-server", plain.kafka, "--topic", "verified", "--max-messages", "500", "--acks", "-1"),
        *("--repeating-keys", "1000"),
    )
    assert printed.count("producer_send_success") == 500
    found = consume(plain, "verified", 1, 500)
    assert {value for _, _, value in found.values()} == {b"%d" % number for number in range(500)}


def test_the_verifiable_consumer_reads_and_commits_as_a_member(plain: Node) -> None:
    create(plain, "read", 2, {})
    produce(plain, "read", 500)
    printed = kafka_jars.run_tool(
        "org.apache.kafka.tools.VerifiableConsumer",
        *("--bootstrap-server", plain.kafka, "--topic", "read", "--group-id", "verifiable", "--max-messages", "500"),
        *("--reset-policy", "earliest"),
    )
    told = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert sum(each["count"] for each in told if each["name"] == "records_consumed") == 500
    commits = [each for each in told if each["name"] == "offsets_committed"]
    assert all(each["success"] for each in commits)
    ends = {(at["topic"], at["partition"]): at["offset"] for each in commits for at in each["offsets"]}
    assert sum(ends.values()) == 500


def test_the_transactional_message_copier_copies_once_with_aborts(plain: Node) -> None:
    """The tool subscribes as a member of a group. It aborts transactions at random, and reads their records again."""
    for topic in ("original", "copied"):
        create(plain, topic, 1, {})
    produce(plain, "original", 500)
    kafka_jars.run_tool(
        "org.apache.kafka.tools.TransactionalMessageCopier",
        *(
            "--broker-list",
            plain.kafka,
            "--input-topic",
            "original",
            "--output-topic",
            "copied",
            "--input-partition",
            "0",
        ),
        *("--consumer-group", "copying", "--transactional-id", "copier", "--transaction-size", "20"),
        *("--max-messages", "500", "--enable-random-aborts", "--group-mode"),
    )
    found = values(plain, "copied", "read_committed")
    assert found == values(plain, "original", "read_committed")
    assert len(found) == 500
    assert len(values(plain, "copied", "read_uncommitted")) > 500


def values(node: Node, topic: str, isolation: str) -> list[bytes]:
    settings = {"bootstrap.servers": node.kafka, "group.id": "unused", "enable.partition.eof": True}
    reader = Consumer({**settings, "isolation.level": isolation})
    reader.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    try:
        while (message := reader.poll(30)) is not None and message.error() is None:
            found.append(bytes(message.value() or b""))
        assert message is not None, "the topic was not read to its end"
        return sorted(found)
    finally:
        reader.close()


def test_kafkas_replica_verification_finds_no_lag(plain: Node, tmp_path: Path) -> None:
    """The tool fetches as a replica does, until it is killed."""
    create(plain, "replicated", 2, {})
    main = ["java", "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", kafka_jars.class_path()]
    main += ["org.apache.kafka.tools.ReplicaVerificationTool", "--broker-list", plain.kafka]
    main += ["--topics-include", "replicated", "--report-interval-ms", "100"]
    with start_child(main, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(2)]
        finally:
            process.kill()
    assert "verification process is started" in lines[0]
    assert re.search(r"max lag is 0 for partition replicated-\d at offset 0 among 2 partitions", lines[1])
