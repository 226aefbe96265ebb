"""`tidelog perf` on a node: it sends and reads as many records as it reports, and its lines have the form of Kafka's
tools.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any, cast

import pytest

from service.cli.client.perf_produce import ProducePlan, _ProduceRun
from tests.service.cli.support import ROOT, Ran, tidelog
from tests.support import kafka_jars
from tests.support.children import start_child
from tests.support.clock import ManualClock
from tests.support.node import Node

pytestmark = pytest.mark.xdist_group("cli-perf")

SOON: dict[str, str | int | bool] = {"group.initial.rebalance.delay.ms": 0}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("measured"), settings=SOON) as started:
        assert tidelog("topic", "create", "small", "-c", "max.message.bytes=2000", "-b", started.kafka).code == 0
        assert tidelog("perf", "produce", "full", "-n", "500", "-s", "100", "-b", started.kafka).code == 0
        yield started


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", ".", request.node.name)


def at(node: Node, *words: str | Path) -> Ran:
    return tidelog(*words, "-b", node.kafka)


def perf(node: Node, *words: str | Path) -> Ran:
    ran = at(node, "perf", *words)
    assert (ran.code, ran.err) == (0, "")
    return ran


def values(node: Node, topic: str) -> list[str]:
    """The values of the committed records."""
    return at(node, "consume", topic, "-e").out.splitlines()


def end(node: Node, topic: str) -> int:
    (partition,) = at(node, "topic", "describe", topic, "--json").json["partitions"]
    return int(partition["end"])


# --- producing --------------------------------------------------------------------------------------------------------
def test_records_of_a_size_are_sent(node: Node, topic: str) -> None:
    ran = perf(node, "produce", topic, "--records", "300", "--record-size", "40")
    assert ran.out.startswith("300 records sent, ")
    sent = values(node, topic)
    assert len(sent) == len(set(sent)) == 300
    assert all(re.fullmatch("[A-Z]{40}", value) for value in sent)


def test_lines_of_a_file_are_sent(node: Node, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text("one\n\ntwo\nthree")
    perf(node, "produce", topic, "-n", "200", "--payload-file", file, "--compression", "zstd", "--acks", "1")
    sent = values(node, topic)
    assert (len(sent), set(sent)) == (200, {"one", "two", "three"})


def test_json_has_all_figures(node: Node, topic: str) -> None:
    found = perf(node, "produce", topic, "-n", "400", "-s", "50", "--warmup", "100", "-i", "0.01", "--json").json
    assert (found["records"], found["bytes"]) == (400, 20_000)
    assert (found["steady_state"]["records"], found["steady_state"]["bytes"]) == (300, 15_000)
    for figures in (found, found["steady_state"]):
        latencies = [figures["latency_ms"][name] for name in ("p50", "p95", "p99", "p99.9", "max")]
        assert latencies[0] > 0
        assert latencies == sorted(latencies)
        assert 0 < figures["latency_ms"]["average"] <= latencies[-1]
        assert figures["records_per_second"] == pytest.approx(figures["records"] / figures["seconds"], rel=0.01)
    assert sum(each["records"] for each in found["intervals"]) <= 400


@pytest.mark.parametrize("words", [("--transactional-id", "measured"), ()], ids=["named", "unnamed"])
def test_transactions_are_committed(node: Node, topic: str, words: tuple[str, ...]) -> None:
    perf(node, "produce", topic, "-n", "5", "-s", "10", "--transaction-duration", "0ms", *words)
    assert len(values(node, topic)) == 5
    assert end(node, topic) == 10, "a marker after each record"
    states = {each["transactional_id"]: each["state"] for each in at(node, "txn", "list", "--json").json}
    ended = [state for name, state in states.items() if name.startswith(words[-1] if words else "perf-producer-")]
    assert ended
    assert set(ended) == {"CompleteCommit"}


def test_a_transaction_lasts_for_the_given_duration(node: Node, topic: str) -> None:
    perf(node, "produce", topic, "-n", "50", "-s", "10", "--transactional-id", "long", "--transaction-duration", "30s")
    assert (len(values(node, topic)), end(node, topic)) == (50, 51)


@pytest.mark.parametrize("words", [(), ("--transactional-id", "refused")], ids=["plain", "in a transaction"])
def test_a_refused_record_ends_the_run(node: Node, words: tuple[str, ...]) -> None:
    ran = at(node, "perf", "produce", "small", "-n", "20000", "-s", "3000", *words)
    assert (ran.code, ran.out) == (1, "")
    aborted = " and its transaction aborted" if words else ""
    assert f"records written to small, then one was refused{aborted}: Message size too large" in ran.err
    assert values(node, "small") == []
    if words:
        states = {each["transactional_id"]: each["state"] for each in at(node, "txn", "list", "--json").json}
        assert states.get("refused") in (None, "Empty", "CompleteAbort")


def test_a_record_that_librdkafka_refuses_ends_the_run(node: Node) -> None:
    ran = at(node, "perf", "produce", "small", "-n", "10", "-s", "2000000")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("tidelog: cannot send to small: ")


def interrupted(node: Node, *words: str, after: Callable[[str], bool]) -> tuple[int, str]:
    """Sends Ctrl-C after the first line that `after` accepts; returns the command's exit code and output."""
    command = [sys.executable, "-m", "service.cli.main", "perf", *words, "-b", node.kafka]
    with start_child(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if after(line):
                process.send_signal(signal.SIGINT)
                after = bool  # never again
                break
        lines += process.stdout.readlines()
        return process.wait(60), "".join(lines)


def test_ctrl_c_ends_a_run_with_its_figures(node: Node, topic: str) -> None:
    words = ("-n", "100000000", "-i", "0.05")
    code, out = interrupted(
        node, "produce", topic, "-s", "10", "--throughput", "1000", *words, after=lambda line: "sent" in line
    )
    assert code == 0
    sent = re.fullmatch(r"(\d+) records sent, .* 99\.9th\.", out.splitlines()[-1])
    assert sent is not None
    assert len(values(node, topic)) == int(sent[1])


def test_a_transactional_id_in_use_is_named(node: Node, topic: str) -> None:
    words = ("produce", topic, "-s", "10", "--transactional-id", "shared")
    long = ("-n", "100000000", "--throughput", "1000", "-i", "0.05", "-b", node.kafka)
    command = [sys.executable, "-m", "service.cli.main", "perf", *words, *long]
    with start_child(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, text=True) as first:
        assert first.stdout is not None
        assert "sent" in first.stdout.readline()
        perf(node, *words, "-n", "5")
        _, err = first.communicate(timeout=60)
    assert first.returncode == 1
    assert "another producer uses the transactional id shared, or `tidelog txn abort` ended the transaction" in err
    assert "give this run an id of its own with --transactional-id" in err
    perf(node, "produce", topic, "-s", "10", "--transactional-id", "own", "-n", "5")


class Paced:
    """A producer whose polls take all the time that they are given, and that acknowledges nothing."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.sent_s: list[float] = []

    def produce(self, *_: object, **__: object) -> None:
        self.sent_s.append(self.clock.monotonic())

    def poll(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def __len__(self) -> int:
        return 0


def test_records_are_sent_at_their_time() -> None:
    clock = ManualClock(1_700_000_000_000)
    producer = Paced(clock)
    plan = ProducePlan("t", 50, repeat(b"x"), 0, 20.0, None, None, 5.0)
    _ProduceRun(cast(Any, producer), plan, clock, say=print).run()
    assert [after - before for before, after in pairwise(producer.sent_s)] == pytest.approx([0.05] * 49)


# --- consuming --------------------------------------------------------------------------------------------------------
def test_records_are_read_and_measured(node: Node) -> None:
    header, line = perf(node, "consume", "full", "--records", "500").out.splitlines()
    figures = dict(zip(header.split(", "), line.split(", "), strict=True))
    assert (figures["data.consumed.in.nMsg"], figures["data.consumed.in.MB"]) == ("500", "0.0477")
    found = perf(node, "consume", "full", "--records", "100", "--json").json
    assert (found["records"], found["bytes"]) == (100, 10_000)
    assert found["seconds"] * 1000 == pytest.approx(found["rebalance_ms"] + found["fetch_ms"], abs=0.01)
    assert "intervals" not in found


def test_each_interval_has_a_line(node: Node) -> None:
    slowly = ("-c", "fetch.message.max.bytes=2000", "-c", "queued.min.messages=1", "-i", "0.01")
    header, *lines = perf(node, "consume", "full", "-n", "500", "--detailed", *slowly).out.splitlines()
    assert header.startswith("time, threadId, ")
    totals = [int(line.split(", ")[4]) for line in lines]
    assert totals
    assert totals == sorted(totals)
    assert totals[-1] == 500
    _, whole = perf(node, "consume", "full", "-n", "500", "--detailed", "-i", "3600").out.splitlines()
    assert int(whole.split(", ")[4]) == 500, "the last interval is shorter than asked, and has a line as well"


def test_a_group_resumes_at_its_offset_and_a_run_without_one_leaves_none(node: Node) -> None:
    perf(node, "consume", "full", "-n", "200", "--group", "going-on")
    perf(node, "consume", "full", "-n", "300", "--group", "going-on", "--from", "end")
    (place,) = at(node, "group", "describe", "going-on", "--json").json["partitions"]
    assert (place["offset"], place["lag"]) == (500, 0)
    own = [each["group"] for each in at(node, "group", "list", "--json").json if "perf-consumer-" in each["group"]]
    for group in own:
        assert at(node, "group", "describe", group, "--json").json.get("partitions", []) == []


@pytest.mark.parametrize("words", [("--from", "end", "-n", "1"), ("-n", "501")], ids=["from the end", "too many"])
def test_too_few_records_are_a_failure_with_figures(node: Node, words: tuple[str, ...]) -> None:
    patience = "0.5" if "end" in words else "5"  # joining the group takes time, too
    ran = at(node, "perf", "consume", "full", *words, "--timeout", patience, "--json")
    read = 0 if "end" in words else 500
    assert (ran.code, ran.json["records"]) == (1, read)
    assert (
        f"read {read} records of {words[-1]}, then no more for {patience} s; raise --timeout, or lower --records"
        in ran.err
    )
    if read:
        perf(node, "consume", "full", "-n", str(read))


# --- arguments --------------------------------------------------------------------------------------------------------
SEND = ("produce", "full", "-n", "10")


@pytest.mark.parametrize(
    ("refused", "said", "taken"),
    [
        (SEND, "give one of --record-size and --payload-file", (*SEND, "-s", "9")),
        ((*SEND, "-s", "9", "-f", __file__), "give one of --record-size and --payload-file", (*SEND, "-f", __file__)),
        ((*SEND, "-f", "/dev/null"), "has no line that is not empty", ()),
        (
            (*SEND, "-s", "9", "--throughput", "0"),
            "it must be above 0 records per second",
            (*SEND, "-s", "9", "--throughput", "1e6"),
        ),
        ((*SEND, "-s", "9", "--warmup", "10"), "it must be below --records", (*SEND, "-s", "9", "--warmup", "9")),
        (
            (*SEND, "-s", "9", "--transactional-id", "a", "--acks", "1"),
            "transactions need --acks all; leave the option out",
            (*SEND, "-s", "9", "--transactional-id", "a"),
        ),
        (
            (*SEND, "-s", "9", "--transaction-duration", "9"),
            "write 90s or 1h30m",
            (*SEND, "-s", "9", "--transaction-duration", "90s"),
        ),
        (
            (*SEND, "-s", "9", "-c", "linger=0"),
            'No such configuration property: "linger"',
            (*SEND, "-s", "9", "-c", "linger.ms=0"),
        ),
        (("consume", "fill", "-n", "1"), "there is no topic fill (did you mean full?)", ("consume", "full", "-n", "1")),
        (("consume", "full", "-n", "1", "-c", "x=1"), "No such configuration property", ()),
    ],
)
def test_wrong_words_are_refused(node: Node, refused: tuple[str, ...], said: str, taken: tuple[str, ...]) -> None:
    topic = "wrong" if refused[0] == "produce" else None
    ran = at(node, "perf", *(topic if topic and word == "full" else word for word in refused))
    assert ran.code in (1, 2)
    assert said in " ".join(re.sub(r"[│╭╰─╮╯]", " ", ran.err).split())
    if taken:
        perf(node, *(topic if topic and word == "full" else word for word in taken))


# --- beside Kafka's tools ---------------------------------------------------------------------------------------------
def shapes(printed: str) -> list[str]:
    """The kinds of lines, with the numbers masked. Kafka's tool may divide by zero ms, and its times may be
    negative."""
    number = re.compile(r"(?<!\d)-?\d+(\.\d+)?|NaN|-?Infinity")
    masked = (
        number.sub(lambda found: "N" if found[0].lstrip("-").isdecimal() else "N.N", line)
        for line in printed.splitlines()
    )
    return sorted(set(masked))


def test_producing_is_printed_as_kafkas_tool_prints_it(node: Node, topic: str) -> None:
    theirs = ""
    while "In steady state." not in theirs:  # a JVM that starts late sends the rest at once, within one interval
        theirs = kafka_jars.run_tool(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--bootstrap-server", node.kafka, "--topic", topic, "--num-records", "2000", "--record-size", "100"),
            *("--throughput", "1000", "--warmup-records", "500", "--reporting-interval", "300"),
        )
    words = ("-n", "2000", "-s", "100", "--throughput", "1000", "--warmup", "500", "-i", "0.3")
    assert shapes(perf(node, "produce", topic, *words).out) == shapes(theirs)


@pytest.mark.parametrize("detailed", [False, True])
def test_consuming_is_printed_as_kafkas_tool_prints_it(node: Node, detailed: bool) -> None:
    theirs = kafka_jars.run_tool(
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", node.kafka, "--topic", "full", "--num-records", "500"),
        *(("--show-detailed-stats", "--reporting-interval", "1") if detailed else ()),
    )
    words = ("--detailed", "-i", "0.01") if detailed else ()
    assert shapes(perf(node, "consume", "full", "-n", "500", *words).out) == shapes(theirs)
