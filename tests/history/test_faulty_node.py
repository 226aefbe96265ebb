"""Histories of real clients have no anomaly, though the node is killed, paused and restarted while its store fails and the logs
are compacted, offloaded and evicted.

Two topics are written in the same transactions: `log` keeps every record, and `table` is compacted. At the end everything is
read from the beginning three times: as it is, from the bucket alone, and after a restart.

A failure names its seed: `TIDELOG_FAULT_SEED=<seed>` repeats the choice of faults (the interleaving is up to the machine).
`make soak SECONDS=…` makes such histories, each with a seed of its own, for that time.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Set
from pathlib import Path

import pytest

from tests.faults import bucket
from tests.faults.clients import create_topic, local_bytes, seal, until
from tests.faults.processes import kill_broker, kill_node, kill_tier, tier_process
from tests.history.anomalies import Kind, anomalies, told
from tests.history.operations import Outcome
from tests.history.recorder import Follower, Recorder, Sender
from tests.history.transactor import GROUP, Transactor
from tests.support.node import Node
from tests.support.s3_proxy import S3Proxy, answer, delayed, hang_up_after, hang_up_before
from tests.support.s3_servers import BUCKET, S3Server

SEED = int(os.environ.get("TIDELOG_FAULT_SEED", "20240601"))
#: The seconds of `make soak`.
SOAK_S = int(os.environ.get("TIDELOG_FAULT_SECONDS", "0"))
#: Seconds during which faults are committed. Settling, reading and judging take about as long again.
A_HISTORY_S = 30.0
PARTITIONS = 2
SETTINGS: dict[str, str | int | bool] = {
    "log.retention.check.interval.ms": 200,
    "log.cleaner.backoff.ms": 50,
    "tidelog.tier.delete.grace.ms": 4000,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 500,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
}
TIERED = {
    "internal.segment.bytes": str(32 << 10),
    "local.retention.bytes": "0",
    "retention.ms": "-1",
    "tidelog.tier.max.lag.ms": "300",
}
COMPACTED = {
    **TIERED,
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
    "local.retention.bytes": "60000",
}
TOPICS = {"log": TIERED, "table": COMPACTED}
#: Faults that a history has at least once: SAMPLE in a normal run of the tests, WHOLE in a run of the fault tests.
SAMPLE = frozenset({"store_fails"})
WHOLE = frozenset({"kill", "pause", "restart", "store_fails", "kill_tier"})
#: Events that a whole history waits for before the readings: cleanings in both tiers, and evictions.
MEANWHILE = ("log.cleaned .*tier=local", "log.cleaned .*tier=bucket", "segment.evicted ")


class FaultyNode:
    """A node behind a proxy to its store, and its faults."""

    def __init__(self, node: Node, proxy: S3Proxy, rng: random.Random) -> None:
        self.node, self.proxy, self.rng = node, proxy, rng
        self.faults = (self.kill, self.kill, self.pause, self.pause, self.restart, self.store_fails, self.kill_tier)
        self.done: Counter[str] = Counter()

    def run(self, seconds: float, wanted: Set[str]) -> None:
        """Causes the faults in rounds, each of all faults in a random order, for `seconds` and until each of `wanted` has
        occurred."""
        deadline = time.monotonic() + seconds
        left: list[Callable[[], None]] = []
        while time.monotonic() < deadline or wanted - set(self.done):
            if not left:
                left = self.rng.sample(self.faults, len(self.faults))
                left.sort(key=lambda fault: fault.__name__ in wanted)  # faults are taken from the end
            self.wait(2.0)
            fault = left.pop()
            fault()
            self.done[fault.__name__] += 1

    def wait(self, longest_s: float) -> None:
        """Waits for no condition: the random moment is the purpose."""
        time.sleep(self.rng.uniform(0, longest_s))

    def kill(self) -> None:
        self.rng.choice((kill_node, kill_broker))(self.node.pid)
        self.node.kill()
        self.wait(1.0)
        self.node.start()

    def pause(self) -> None:
        """Pauses the node, with or without its tier process."""
        paused = [self.node.pid]
        if (tier := tier_process(self.node.pid)) is not None and self.rng.random() < 0.5:
            paused.append(tier)
        for pid in paused:
            os.kill(pid, signal.SIGSTOP)
        self.wait(5.0)
        for pid in paused:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def restart(self) -> None:
        self.node.restart()

    def store_fails(self) -> None:
        self.proxy.always(self.rng.choice((hang_up_before(), hang_up_after(), answer(503), delayed(2))))
        self.wait(4.0)
        if self.rng.random() < 0.5:
            self.kill()
        self.proxy.clear()

    def kill_tier(self) -> None:
        kill_tier(self.node.pid)


def recorder_of(node: Node, isolation: str = "read_committed", *, loses: bool = False) -> Recorder:
    for topic, configs in TOPICS.items():
        create_topic(node, topic, PARTITIONS, configs)
    keys = [f"{topic}-{partition}" for topic in TOPICS for partition in range(PARTITIONS)]
    compacted = frozenset(key for key in keys if key.startswith("table"))
    return Recorder(node.kafka, keys, compacted, isolation=isolation, loses=loses)


@contextlib.contextmanager
def clients(recorder: Recorder, rng: random.Random) -> Iterator[None]:
    with contextlib.ExitStack() as running:
        for number in range(2):
            running.enter_context(Transactor(recorder, f"member-{number}", random.Random(rng.random()), group=GROUP))
        running.enter_context(Transactor(recorder, "assigned", random.Random(rng.random())))
        running.enter_context(Sender(recorder, "sender", random.Random(rng.random())))
        running.enter_context(Follower(recorder, "follower", random.Random(rng.random())))
        yield


def outcomes_of(recorder: Recorder) -> tuple[bool, ...]:
    """Whether an operation succeeded, whether one was aborted, and whether one of a group that polled records succeeded."""
    done = list(recorder.operations.done)
    succeeded = [each for each in done if each.outcome is Outcome.OK]
    aborted = any(each.outcome is Outcome.FAILED for each in done)
    return bool(succeeded), aborted, any(True for each in succeeded if each.group for _ in each.polls())


def only_in_the_bucket(node: Node) -> None:
    """Returns once the local disk has no record of `log`. Some local segments of the compacted topic stay."""
    for topic in TOPICS:
        seal(node, topic)
    until(lambda: not local_bytes(node, "log", PARTITIONS), "all records of the log are evicted")


def one_history(directory: Path, server: S3Server, seed: int, seconds: float, wanted: Set[str]) -> str:
    """Asserts that there is no anomaly in a history with the wanted faults. Returns a summary in one line."""
    print(f"TIDELOG_FAULT_SEED={seed}")
    rng = random.Random(seed)
    with S3Proxy(server.endpoint) as proxy:
        store = f"s3://{BUCKET}/history/{seed}"
        with Node(directory, store=store, settings=SETTINGS, flags=["--s3-endpoint", proxy.endpoint]) as node:
            recorder = recorder_of(node)
            faulty = FaultyNode(node, proxy, rng)
            with clients(recorder, rng):
                faulty.run(seconds, wanted)
                until(
                    lambda: recorder.failures or all(outcomes_of(recorder)),
                    "transactions of each outcome, and of a group",
                )
                if wanted == WHOLE:
                    until(lambda: all(re.search(each, node.output()) for each in MEANWHILE), str(MEANWHILE))
            assert wanted <= set(faulty.done)
            assert not recorder.failures, "\n".join(recorder.failures)
            recorder.whole_reading("as it is")
            only_in_the_bucket(node)
            recorder.whole_reading("from the bucket")
            node.restart()
            recorder.whole_reading("after a restart")
            found = anomalies(recorder.operations)
            assert not found, f"TIDELOG_FAULT_SEED={seed}\n{told(found)}"
            assert not recorder.failures, "\n".join(recorder.failures)
            until(lambda: "log.cleaned" in node.output(), "the table is cleaned")
            with bucket.opened(node.store, server.endpoint) as opened:
                assert [damage for damage in bucket.findings(opened) if not damage.startswith("orphan")] == []
    done = recorder.operations.done
    outcomes = Counter(operation.outcome for operation in done)
    values = sum(1 for operation in done for _ in operation.sends())
    return f"{values} sends, {', '.join(f'{outcome.value} {many}' for outcome, many in outcomes.items())}; {dict(faulty.done)}"


def test_a_history_has_no_anomaly(tmp_path: Path, versitygw: S3Server) -> None:
    print(one_history(tmp_path, versitygw, SEED, 5.0, SAMPLE))


def test_readers_of_uncommitted_records_are_detected(tmp_path: Path) -> None:
    with Node(tmp_path, settings=SETTINGS) as node:
        recorder = recorder_of(node, "read_uncommitted")
        with clients(recorder, random.Random(SEED)):
            done = recorder.operations.done
            until(lambda: sum(each.outcome is Outcome.FAILED for each in list(done)) > 20, "transactions are aborted")
        recorder.whole_reading("everything")
    assert not recorder.failures, "\n".join(recorder.failures)
    assert Kind.ABORTED_READ in anomalies(recorder.operations)


@pytest.mark.faults
@pytest.mark.timeout(SOAK_S + 600)
def test_histories_with_many_faults_have_no_anomaly(tmp_path: Path, versitygw: S3Server) -> None:
    """Runs one history, or as many as begin within the time of `make soak`."""
    deadline = time.monotonic() + SOAK_S
    for number in itertools.count(1):
        print(one_history(tmp_path / str(number), versitygw, SEED + number, A_HISTORY_S, WHOLE), flush=True)
        if time.monotonic() >= deadline:
            break
