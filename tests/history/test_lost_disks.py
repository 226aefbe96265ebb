"""Histories of real clients with three brokers under one supervisor. The supervisor is killed, and a broker's disk is wiped or
replaced by an older copy. The bounds of the losses explain every anomaly.

The clients are those of `test_faulty_node.py`. Each loss has its bound from the bucket's manifests, which are read while all
brokers are down (`losses.py`). The operator accepts the loss of a wiped disk with an unclean election, as the advice of
`broker.disk_replaced` says.
"""

from __future__ import annotations

import itertools
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ElectionType
from confluent_kafka.admin import AdminClient

from service.cli.client.move_requests import moving
from service.coordination.coordinator_runtime import partition_of
from storage_tiers.cold.manifest.model import State
from tests.faults import bucket
from tests.faults.clients import until
from tests.history.anomalies import anomalies, told
from tests.history.losses import within_bounds
from tests.history.operations import Decisions, Loss
from tests.history.recorder import Recorder
from tests.history.test_faulty_cluster import COORDINATORS, move_everything
from tests.history.test_faulty_node import SEED, SETTINGS, SOAK_S, TOPICS, clients, recorder_of
from tests.history.transactor import GROUP
from tests.service.cli.support import tidelog
from tests.support.node import Node
from tests.support.ports import consecutive_ports
from tests.support.processes import descendants, is_alive
from tests.support.s3_servers import BUCKET, S3Server

BROKERS = (1, 2, 3)
#: The ports of `tidelog serve`, and at most three for each broker.
PORTS = 3 + 3 * len(BROKERS)
#: Seconds; longer than the producer of an open transaction is silent.
SILENT_S = 3
#: The transactional ids of the clients that `clients` starts.
TRANSACTIONAL_IDS = ("member-0", "member-1", "assigned")


class Supervised:
    """Three brokers under one supervisor, and their faults. Broker 1 has the controller, and keeps its disk."""

    def __init__(self, directory: Path, server: S3Server, seed: int) -> None:
        self.rng = random.Random(seed)
        self.server = server
        self.node = Node(
            directory,
            store=f"s3://{BUCKET}/lost-disks/{seed}",
            settings=SETTINGS,
            flags=["--brokers", str(len(BROKERS)), "--s3-endpoint", server.endpoint],
        )
        ports = consecutive_ports(PORTS)
        self.node.kafka, self.node.grpc, self.node.http = (f"127.0.0.1:{port}" for port in ports[:3])
        self.done: Counter[str] = Counter()

    def disk(self, broker: int) -> Path:
        return self.node.data_dir / "brokers" / str(broker) if broker > 1 else self.node.data_dir

    def yesterday(self, broker: int) -> Path:
        return self.node.directory / f"yesterday-{broker}"

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.node.kafka})

    def leaders(self) -> dict[tuple[str, int], int]:
        topics = self.admin().list_topics(timeout=10).topics.items()
        return {(name, number): each.leader for name, topic in topics for number, each in topic.partitions.items()}

    def has_settled(self) -> bool:
        return not moving(self.node.kafka) and all(leader > 0 for leader in self.leaders().values())

    # --- faults -------------------------------------------------------------------------------------------------------
    def die(self) -> None:
        """Kills the supervisor with SIGKILL; returns once none of its processes is left."""
        processes = descendants(self.node.pid)
        self.node.kill()
        until(lambda: not any(map(is_alive, processes)), "no orphan of the supervisor is left", 10)

    def kill_supervisor(self) -> None:
        """Copies the disks while all brokers are down: later faults put these copies back."""
        self.die()
        for broker in BROKERS[1:]:
            shutil.rmtree(self.yesterday(broker), ignore_errors=True)
            shutil.copytree(self.disk(broker), self.yesterday(broker))
        self.node.start()

    def wipe(self, recorder: Recorder) -> None:
        broker = self.die_and_tell(recorder)
        shutil.rmtree(self.disk(broker))
        self.start_and_accept(is_another_disk=True)

    def put_back(self, recorder: Recorder) -> None:
        """Replaces a broker's directory by the copy from an earlier kill of the supervisor."""
        broker = self.die_and_tell(recorder)
        names = [each.joinpath("meta.properties").read_text() for each in (self.disk(broker), self.yesterday(broker))]
        shutil.rmtree(self.disk(broker))
        shutil.copytree(self.yesterday(broker), self.disk(broker))
        self.start_and_accept(is_another_disk=names[0] != names[1])

    def start_and_accept(self, *, is_another_disk: bool) -> None:
        """The operator follows the advice of `broker.disk_replaced`. A directory from before a wipe is reported, too."""
        reported = self.node.output().count("broker.disk_replaced")
        self.node.start()
        if is_another_disk:
            until(lambda: self.node.output().count("broker.disk_replaced") > reported, "the lost disk is reported")
            operator = self.admin()
            operator.elect_leaders(ElectionType.UNCLEAN, None).result(30)
        self.end_hanging()
        until(self.has_settled, "all partitions have leaders again")
        assert is_another_disk == (self.node.output().count("broker.disk_replaced") > reported)

    def end_hanging(self) -> None:
        """The operator ends the transactions that `tidelog txn find-hanging` finds: their coordinators were lost."""
        time.sleep(SILENT_S)  # a transaction whose producer wrote a moment ago may have a coordinator
        until(lambda: self.hanging() == [], "no transaction hangs")

    def hanging(self) -> list[Any] | None:
        """Aborts the hanging transactions and returns them; None if a partition has no leader yet."""
        words = ("txn", "find-hanging", "--max-transaction-timeout", f"{SILENT_S}s", "--json", "-b", self.node.kafka)
        found = tidelog(*words)
        if found.code:
            return None
        for each in found.json:
            self.done["hanging"] += 1
            where = ("--topic", each["topic"], "--partition", each["partition"], "--start-offset", each["start_offset"])
            tidelog("txn", "abort", *map(str, where), "-b", self.node.kafka)
        return list(found.json)

    def die_and_tell(self, recorder: Recorder) -> int:
        """Kills everything, and records the losses that come with the disk of one broker, which it returns. No partition moves
        at the kill, so the leaders' disks have the newest records."""
        until(self.has_settled, "all moves have ended")
        leaders = self.leaders()
        counts = Counter(leader for (topic, _), leader in leaders.items() if topic in TOPICS)
        broker = max(BROKERS[1:], key=lambda each: (counts[each], self.rng.random()))
        led = {place for place, leader in leaders.items() if leader == broker}
        self.die()
        ends, at = self.tiered_ends(), recorder.now()
        for key in recorder.keys:
            topic, _, number = key.rpartition("-")
            if (topic, int(number)) in led:
                recorder.operations.losses.append(Loss(key, ends.get((topic, int(number)), 0), at))
        groups, ids = (self.of_coordinator(led, topic) for topic in COORDINATORS)
        recorder.operations.decisions.append(
            Decisions(
                at,
                processes=frozenset(name for name in TRANSACTIONAL_IDS if ids(name)),
                groups=frozenset(name for name in (GROUP,) if groups(name)),
            )
        )
        return broker

    @staticmethod
    def of_coordinator(led: set[tuple[str, int]], topic: str) -> Callable[[str], bool]:
        """A predicate: whether the partition that coordinates a name is among `led`."""
        return lambda name: (topic, partition_of(name, 3)) in led

    def tiered_ends(self) -> dict[tuple[str, int], int]:
        with bucket.opened(self.node.store, self.server.endpoint) as store:
            return {
                (topic, manifest.ids.partition): manifest.end
                for topic in TOPICS
                for manifest in bucket.manifests(store, topic)
                if manifest.state is State.LIVE
            }

    def run(self, recorder: Recorder, rounds: int) -> None:
        faults: list[Callable[[], None]] = [
            lambda: self.wipe(recorder),
            lambda: self.put_back(recorder),
            self.kill_supervisor,
        ]
        names = ("wipe", "put_back", "kill_supervisor")
        for number in range(rounds):
            order = list(zip(names, faults, strict=True))
            self.rng.shuffle(order)
            if number == 0:  # there are no copies yet
                order.sort(key=lambda named: named[0] != "kill_supervisor")
            for name, fault in order:
                self.write_on(recorder)
                fault()
                self.done[name] += 1
                if self.rng.random() < 0.5:
                    move_everything(self.node.kafka, self.rng)
                    self.done["move"] += 1

    def write_on(self, recorder: Recorder) -> None:
        """Waits until clients have completed some operations, and for a random moment more."""
        before = len(recorder.operations.done)
        until(lambda: recorder.failures or len(recorder.operations.done) > before + 20, "clients go on")
        time.sleep(self.rng.uniform(0.5, 3.0))

    def only_in_the_bucket(self) -> None:
        """Returns once no leader's disk has a record of `log`. Some local segments of the compacted topic stay. A disk from an
        older copy may have a log that has moved since: the log stays there until the next start."""
        for topic in TOPICS:
            sealed = tidelog("topic", "seal", topic, "--wait", "--timeout", "60", "-b", self.node.kafka)
            assert sealed.code == 0, sealed.err
        led = [(self.disk(leader), number) for (topic, number), leader in self.leaders().items() if topic == "log"]

        def is_evicted() -> bool:
            files = [file for disk, number in led for file in disk.glob(f"log-{number}/*.log")]
            return not any(file.stat().st_size for file in files if file.exists())

        until(is_evicted, "all records of the log are evicted")


def one_history(directory: Path, server: S3Server, seed: int, rounds: int) -> str:
    """Asserts that there is no anomaly beyond the bounds. Returns a summary in one line."""
    print(f"TIDELOG_FAULT_SEED={seed}")
    world = Supervised(directory, server, seed)
    with world.node:
        until(lambda: len(world.admin().list_topics(timeout=10).brokers) == len(BROKERS), "all brokers are there")
        recorder = recorder_of(world.node, loses=True)
        with clients(recorder, world.rng):
            until(lambda: set(COORDINATORS) <= {topic for topic, _ in world.leaders()}, "groups and transactions")
            world.run(recorder, rounds)
            world.write_on(recorder)
        assert not recorder.failures, "\n".join(recorder.failures)
        until(world.has_settled, "all moves have ended")
        recorder.whole_reading("as it is")
        world.only_in_the_bucket()
        recorder.whole_reading("from the bucket")
        world.node.restart()
        recorder.whole_reading("after a restart")
        found = anomalies(recorder.operations)
        assert not found, f"TIDELOG_FAULT_SEED={seed}\n{told(found)}"
        assert not recorder.failures, "\n".join(recorder.failures)
        with bucket.opened(world.node.store, server.endpoint) as opened:
            assert [damage for damage in bucket.findings(opened) if not damage.startswith("orphan")] == []
    outcomes = Counter(operation.outcome.value for operation in recorder.operations.done)
    values = sum(1 for operation in recorder.operations.done for _ in operation.sends())
    lost = (
        f"{len(recorder.operations.losses)} partitions lost, with {len(within_bounds(recorder.operations).gone)} values"
    )
    return f"{values} sends, {dict(outcomes)}; {dict(world.done)}; {lost}"


@pytest.mark.faults
@pytest.mark.timeout(SOAK_S + 600)
def test_histories_with_lost_disks_have_no_anomaly_beyond_their_bounds(tmp_path: Path, versitygw: S3Server) -> None:
    """Runs one history of one round, or histories of two rounds for as long as `make soak` lasts."""
    deadline = time.monotonic() + SOAK_S
    for number in itertools.count(1):
        print(one_history(tmp_path / str(number), versitygw, SEED + number, 2 if SOAK_S else 1), flush=True)
        if time.monotonic() >= deadline:
            break
