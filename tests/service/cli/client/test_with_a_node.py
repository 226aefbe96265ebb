"""The commands that talk to a node, against a real one."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.cli.support import ROOT, Ran, tidelog, tidelog_process
from tests.support.children import start_child
from tests.support.node import Node

pytestmark = pytest.mark.xdist_group("cli-node")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture
def topic(node: Node, request: pytest.FixtureRequest) -> str:
    """A topic of two partitions for this test alone."""
    name = re.sub(r"[^A-Za-z0-9._-]", ".", request.node.name)[:200]
    ran = at(node, "topic", "create", name, "--partitions", "2")
    assert ran.code == 0, ran.err
    return name


def at(node: Node, *words: str | Path, stdin: str | bytes | None = None) -> Ran:
    return tidelog(*words, "--bootstrap-server", node.kafka, stdin=stdin)


# --- topics ------------------------------------------------------------------------------------------------------------
def test_a_topic_is_created_listed_described_and_deleted(node: Node) -> None:
    created = at(node, "topic", "create", "born", "-p", "3", "-c", "retention.ms=3600000", "--json")
    assert created.code == 0, created.err
    assert created.json == {"topic": "born", "created": True}

    listed = {found["topic"]: found for found in at(node, "topic", "list", "--json").json}
    assert (listed["born"]["partitions"], listed["born"]["replication_factor"]) == (3, 1)

    described = at(node, "topic", "describe", "born", "--json").json
    assert described["topic_id"] == listed["born"]["topic_id"]
    assert described["configs"] == {"retention.ms": "3600000"}
    assert [part["partition"] for part in described["partitions"]] == [0, 1, 2]
    assert all((part["log_start"], part["end"]) == (0, 0) for part in described["partitions"])
    assert all(part["leader"] is not None and part["leader_epoch"] >= 0 for part in described["partitions"])

    assert at(node, "topic", "delete", "born").out == "deleted born\n"
    gone = at(node, "topic", "describe", "born")
    assert (gone.code, gone.err.startswith("tidelog: there is no topic born")) == (1, True)


def test_text_of_describe_names_configs_and_partitions(node: Node, topic: str) -> None:
    at(node, "topic", "alter", topic, "--config", "retention.ms=7200000")

    lines = at(node, "topic", "describe", topic).out.splitlines()

    assert lines[0].startswith(f"{topic}  id ")
    assert "  retention.ms=7200000" in lines
    assert lines[-3].split()[:2] == ["PARTITION", "LEADER"]


def test_an_existing_topic_is_refused_unless_that_is_fine(node: Node, topic: str) -> None:
    again = at(node, "topic", "create", topic)
    fine = at(node, "topic", "create", topic, "--if-not-exists", "--json")

    assert again.code == 1
    assert "exists already; `tidelog topic describe" in again.err and "--if-not-exists accepts it" in again.err
    assert (fine.code, fine.json["created"]) == (0, False)


@pytest.mark.parametrize(
    "words",
    [
        ("consume", "TOPIC", "-e"),
        ("topic", "describe", "TOPIC"),
        ("topic", "alter", "TOPIC", "-c", "retention.ms=1"),
        ("topic", "alter", "TOPIC", "-p", "9"),
        ("topic", "seal", "TOPIC"),
        ("topic", "delete", "TOPIC"),
        ("topic", "delete-records", "TOPIC", "--before", "end"),
    ],
    ids=" ".join,
)
def test_a_mistyped_topic_is_answered_with_the_similar_one(node: Node, words: tuple[str, ...]) -> None:
    assert at(node, "topic", "create", "measurements", "--if-not-exists").code == 0

    ran = at(node, *(word.replace("TOPIC", "measurments") for word in words))

    said = "there is no topic measurments (did you mean measurements?); `tidelog topic list` shows all"
    assert (ran.code, ran.err) == (1, f"tidelog: {said}\n")


def test_missing_topics_and_records_cannot_be_deleted(node: Node, topic: str) -> None:
    assert at(node, "topic", "delete", "never-was").code == 1
    assert at(node, "topic", "delete", "never-was", topic, "--if-exists", "--json").json == {"deleted": [topic]}


def test_alter_sets_and_deletes_configs_and_adds_partitions(node: Node, topic: str) -> None:
    changed = at(node, "topic", "alter", topic, "-c", "retention.ms=1000", "-c", "segment.bytes=2097152", "-p", "5")
    assert changed.code == 0, changed.err
    described = at(node, "topic", "describe", topic, "--json").json
    assert described["configs"] == {"retention.ms": "1000", "segment.bytes": "2097152"}
    assert len(described["partitions"]) == 5

    assert at(node, "topic", "alter", topic, "--delete-config", "retention.ms").code == 0
    assert at(node, "topic", "describe", topic, "--json").json["configs"] == {"segment.bytes": "2097152"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("--config", "retention.mss=1"), "INVALID_CONFIG"),
        (("--config", "retention.ms=soon"), "INVALID_CONFIG"),
        (("--partitions", "1"), "INVALID_PARTITIONS"),
    ],
    ids=lambda value: value if isinstance(value, str) else "=".join(value),
)
def test_refusals_of_the_node_are_printed(node: Node, topic: str, change: tuple[str, ...], reason: str) -> None:
    ran = at(node, "topic", "alter", topic, *change)

    assert ran.code == 1
    assert len(ran.err.splitlines()) == 1
    assert reason in ran.err


# --- records -----------------------------------------------------------------------------------------------------------
def test_lines_come_back_as_they_went(node: Node, topic: str) -> None:
    lines = [f"k{n}:value {n}" for n in range(500)]

    written = at(node, "produce", topic, "-k", ":", "-H", "origin=test", "--summary", stdin="\n".join(lines))
    read = at(node, "consume", topic, "--exit-at-end", "-k", ":")

    assert (written.code, written.json["records"]) == (0, 500)
    assert sum(last + 1 for _, last in written.json["offsets"][topic].values()) == 500
    assert sorted(read.out.splitlines()) == sorted(lines)


def test_a_key_goes_to_the_partition_that_javas_producer_chooses(node: Node) -> None:
    name = "by-key"
    assert at(node, "topic", "create", name, "--partitions", "3").code == 0
    assert at(node, "produce", name, "-k", ":", stdin="alice:1\nbob:2\ncarol:3\ndave:4\n").code == 0

    lines = at(node, "consume", name, "-e", "--json").json_lines

    assert {line["key"]: line["partition"] for line in lines} == {"alice": 0, "bob": 0, "carol": 2, "dave": 1}


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_records_of_every_codec_come_back(node: Node, topic: str, compression: str) -> None:
    text = "\n".join(["the same line"] * 1000)

    assert at(node, "produce", topic, "-z", compression, stdin=text).code == 0

    assert at(node, "consume", topic, "-e").out == text + "\n"


@pytest.mark.parametrize("acks", ["all", "1", "0"])
def test_records_are_written_with_every_value_of_acks(node: Node, topic: str, acks: str) -> None:
    ran = at(node, "produce", topic, "--acks", acks, stdin="one\ntwo\n")

    assert ran.code == 0, ran.err
    assert at(node, "consume", topic, "-n", "2").code == 0


def test_json_shows_everything_of_a_record(node: Node, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"key\t\xff\n")

    assert at(node, "produce", topic, "-f", file, "-k", "\t", "-p", "1", "-H", "a=b").code == 0
    (line,) = at(node, "consume", topic, "-e", "--json").json_lines

    assert line.pop("timestamp") > 0
    assert line == {
        "topic": topic,
        "partition": 1,
        "offset": 0,
        "timestamp_type": "create_time",
        "key": "key",
        "value_base64": "/w==",
        "headers": [{"key": "a", "value": "b"}],
    }


def test_consume_begins_at_the_given_position(node: Node, topic: str) -> None:
    at(node, "produce", topic, "-p", "0", stdin="\n".join(map(str, range(10))))
    times = [line["timestamp"] for line in at(node, "consume", topic, "-e", "--json").json_lines]

    assert at(node, "consume", topic, "-p", "0", "--from", "7", "-e").out.split() == ["7", "8", "9"]
    assert at(node, "consume", topic, "--from", "end", "-e").out == ""
    assert at(node, "consume", topic, "--from", f"@{times[0]}", "-n", "1").out == "0\n"
    assert at(node, "consume", topic, "--from", "2001-01-01", "-n", "2").out.split() == ["0", "1"]
    assert at(node, "consume", topic, "--from", "1969-12-31T23:59:59.999Z", "-n", "2").out.split() == ["0", "1"]
    assert at(node, "consume", topic, "--from", "2099-01-01T00:00:00Z", "-e").out == ""


def test_consume_reports_a_missing_topic(node: Node, topic: str) -> None:
    beyond = at(node, "consume", topic, "-p", "0", "--from", "1000", "-n", "1")
    partition = at(node, "consume", topic, "-p", "9", "-e")
    missing = at(node, "consume", "never-was", "-e")

    assert [ran.code for ran in (beyond, partition, missing)] == [1, 1, 1]
    assert "its log starts at offset 0 and ends at 0" in beyond.err
    assert "has no partition 9, only 0 to 1" in partition.err
    assert "never-was" in missing.err
    assert "never-was" not in at(node, "topic", "list").out, "describing does not create"


def test_produce_stops_at_a_line_without_a_key_after_writing_those_before(node: Node, topic: str) -> None:
    ran = at(node, "produce", topic, "-k", ":", stdin="a:1\nb:2\nthree\nd:4\n")

    assert ran.code == 1
    assert "line 3" in ran.err
    assert sorted(at(node, "consume", topic, "-e").out.split()) == ["1", "2"]


def test_produce_reports_refused_records(node: Node, topic: str) -> None:
    at(node, "topic", "alter", topic, "--config", "max.message.bytes=1000")

    large = at(node, "produce", topic, "-p", "0", stdin="fits\n" + "x" * 5000 + "\n")
    nowhere = at(node, "produce", topic, "-p", "7", stdin="lost\n")

    assert (large.code, nowhere.code) == (1, 1)
    assert "MSG_SIZE_TOO_LARGE" in large.err
    said = f"0 records written to {topic}, then one was refused: {topic} has no partition 7, only 0 to 1"
    assert nowhere.err == f"tidelog: {said}\n"


def test_a_compacted_topic_that_refuses_a_record_without_a_key_says_so(node: Node, topic: str) -> None:
    at(node, "topic", "alter", topic, "--config", "cleanup.policy=compact")

    ran = at(node, "produce", topic, stdin="no key\n")

    assert ran.code == 1
    assert f"{topic} is a compacted topic, and accepts only records with keys; use --key-separator" in ran.err
    assert at(node, "produce", topic, "-k", ":", stdin="a:1\n").code == 0


def test_consume_follows_until_it_is_interrupted(node: Node, topic: str) -> None:
    words = ("consume", topic, "--bootstrap-server", node.kafka)
    follower = start_child([sys.executable, "-m", "service.cli.main", *words], stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert follower.stdout is not None
        at(node, "produce", topic, stdin="first\n")
        assert follower.stdout.readline() == b"first\n"
        at(node, "produce", topic, stdin="second\n")
        assert follower.stdout.readline() == b"second\n"
        follower.send_signal(signal.SIGINT)
        assert follower.wait(30) == 0
    finally:
        follower.kill()
        follower.wait()


def test_the_console_script_works_in_a_pipe(node: Node, topic: str) -> None:
    written = tidelog_process("produce", topic, "-b", node.kafka, stdin=b"piped\n")
    read = tidelog_process("consume", topic, "-b", node.kafka, "-e")

    assert written.code == 0
    assert written.err == f"1 record written to {topic}\n"
    assert (read.code, read.out, read.err) == (0, "piped\n", "")


# --- the bucket --------------------------------------------------------------------------------------------------------
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux")
def test_unwritable_output_is_one_line(node: Node, topic: str) -> None:
    address = ("--bootstrap-server", node.kafka)
    assert tidelog("produce", topic, *address, stdin="a\nb\n").code == 0
    consume = ("consume", topic, "--exit-at-end")
    for words in (consume, (*consume, "--json"), ("topic", "list", "--json"), ("topic", "list")):
        with open("/dev/full", "wb") as full:
            command = [sys.executable, "-m", "service.cli.main", *words, *address]
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60, cwd=ROOT, check=False)
        sentence = "tidelog: cannot write the output: No space left on device\n"
        assert (done.returncode, done.stderr.decode()) == (1, sentence)


def test_a_closed_output_is_no_error(node: Node, topic: str) -> None:
    command = f"{shlex.quote(sys.executable)} -m service.cli.main topic list --bootstrap-server {node.kafka} >&-"
    done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, timeout=60, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_seal_moves_everything_to_the_bucket(node: Node, topic: str) -> None:
    at(node, "produce", topic, stdin="\n".join(map(str, range(1000))))

    sealed = at(node, "topic", "seal", topic, "--wait", "--json")

    assert sealed.code == 0, sealed.err
    parts = sealed.json["partitions"]
    assert sum(part["end"] for part in parts) == 1000
    assert all(part["tiered_end"] == part["end"] for part in parts)
    described = at(node, "topic", "describe", topic, "--json").json
    assert [part["tiered_end"] or 0 for part in described["partitions"]] == [part["end"] for part in parts]
    listed = tidelog("cold", "ls", "--store", node.store, topic, "--json").json
    assert listed["totals"]["records"] == 1000
    assert {part["topic_id"] for part in listed["partitions"]} == {described["topic_id"]}
    assert {part["partition"]: part["end"] for part in listed["partitions"]} == {
        part["partition"]: part["end"] for part in parts if part["end"]
    }


def test_sealing_a_missing_topic_is_reported(node: Node) -> None:
    ran = at(node, "topic", "seal", "never-was", "--wait")

    assert ran.code == 1
    assert "there is no topic never-was; `tidelog topic list` shows all" in ran.err


def test_nothing_in_a_data_directory_is_called_damaged(node: Node, topic: str) -> None:
    ran = tidelog("log", "dump", node.data_dir)

    assert ran.code == 0
    assert node.kafka in ran.out


def test_dump_reads_a_running_nodes_directory(node: Node, topic: str) -> None:
    at(node, "produce", topic, "-p", "0", stdin="\n".join(map(str, range(100))))

    ran = tidelog("log", "dump", "--deep", "--json", node.partition_dir(topic, 0))

    assert ran.code == 0, ran.err
    assert [line["value"] for line in ran.json_lines if line["kind"] == "record"] == [str(n) for n in range(100)]


# --- a node that goes away ---------------------------------------------------------------------------------------------
def test_a_follower_waits_while_the_node_crashes_and_restarts(tmp_path: Path) -> None:
    with Node(tmp_path, settings={"num.partitions": 4}) as own:
        assert at(own, "topic", "create", "kept").code == 0
        at(own, "produce", "kept", stdin="before\n")
        words = ("consume", "kept", "--bootstrap-server", own.kafka)
        follower = start_child(
            [sys.executable, "-m", "service.cli.main", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
        )
        try:
            assert follower.stdout is not None and follower.stderr is not None
            assert follower.stdout.readline() == b"before\n"
            addresses = (own.kafka, own.grpc, own.http)
            own.kill()
            assert b"lost the node" in follower.stderr.readline()
            own.start()
            own.restart()
            assert (own.kafka, own.grpc, own.http) == addresses
            at(own, "produce", "kept", stdin="after\n")
            assert follower.stdout.readline() == b"after\n"
        finally:
            follower.kill()
            follower.wait()
        assert len(at(own, "topic", "describe", "kept", "--json").json["partitions"]) == 4
