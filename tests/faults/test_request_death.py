"""The node dies at its n-th request to the store, for every n: before the request arrives at the store, or after the store has
answered and the answer is lost. A lost answer is tried with requests that change the bucket: after any other, the bucket and
the node are as before it.

A proxy between the node and versitygw counts and kills. Then the node restarts and completes the work. Once everything has
settled, the bucket must be what a clean run leaves: `fsck` finds nothing, not even an orphan or an unfinished upload too
young to be damage; and the manifests hold the records that were sent, each at its own offset.

    offload     the whole life up to the first offload: probe, incarnation, topic.json, sidecar, segment, manifest
    multipart   a segment above 16 MiB
    retention   segments leave the manifest and the bucket; an orphan and a stray upload are swept meanwhile
    compaction  the bucket's segments are fetched, rewritten and replaced by two commits; the old objects are swept

The test goes from request to request until the work makes no more. That number varies, but it has a floor: a killer that never
strikes proves nothing. `make faults` dies at every `EVERY`-th request, from one that the seed chooses; `make soak` at all.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

import grpc
import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from tests.faults import bucket
from tests.faults.clients import TIERED, WAIT_S, Load, seal, until
from tests.faults.processes import kill_node, kill_tier
from tests.faults.world import HOUR_MS, SWEEPING, a_world
from tests.history.passes import Content, History, Send
from tests.support.node import Node, NodeFailed
from tests.support.s3_proxy import Action, Answer, DropConnection, Forward, Request, S3Proxy
from tests.support.s3_servers import BUCKET, S3Server

TOPIC = "dying"
SEED = int(os.environ.get("TIDELOG_FAULT_SEED", "20240601"))
#: No timer deletes anything: the test triggers all work.
CALM = {"tidelog.tier.delete.grace.ms": HOUR_MS, "log.retention.check.interval.ms": HOUR_MS}
BEFORE, AFTER = "before", "after"
#: Compacts what is due at once, and deletes objects from the bucket within seconds.
BUSY: Mapping[str, str | int | bool] = {**SWEEPING, "log.cleaner.backoff.ms": 1}
#: The methods that change a bucket.
CHANGING = ("PUT", "POST", "DELETE")
#: Clean runs make 29, 10, 19 to 40 and 30 to 40 requests (sweeps repeat until the test sees that all is done). A run with
#: fewer than its floor does not cover its scenario.
FLOORS = {"offload": 24, "multipart": 8, "retention": 15, "compaction": 24}
#: Floors of the requests that change the bucket; clean runs make 16, 7, 8 to 12 and 9 of them.
FLOORS_OF_CHANGES = {"offload": 14, "multipart": 6, "retention": 6, "compaction": 8}
#: Runs of a request number up to the floor before a missing death counts as a failure. Beyond the floor, the first run without
#: a death ends the test.
TRIES = 2
#: Each scenario's requests are split over this many tests, so that processes can share them.
PARTS = 2
#: The node dies at one in this many requests of a scenario; `make soak` sets it to 1.
EVERY = int(os.environ.get("TIDELOG_FAULT_EVERY", "6"))


class Killer:
    """The proxy's rule: the node dies at the n-th request after `arm`. `made` counts the requests up to `disarm`. A death
    after an answer counts only the requests that change the bucket."""

    def __init__(self, proxy: S3Proxy, node: Node, number: int, when: str) -> None:
        self._proxy = proxy
        self._node = node
        self._number = number
        self._when = when
        self._methods = CHANGING if when == AFTER else ()
        self._first = 0
        self.made = 0
        self.killed = False
        self.at = "no request: the work was done before"

    def arm(self) -> None:
        self._first = len(self._proxy.requests)
        self._proxy.on(self._number, self._kill, methods=self._methods)

    def disarm(self) -> None:
        """Ends the count: later requests only check the result."""
        made = self._proxy.requests[self._first :]
        self.made = sum(not self._methods or each.method in self._methods for each in made)
        self._proxy.clear()

    async def _kill(self, request: Request, forward: Forward) -> Answer:
        if self._when == AFTER:
            await forward(request)
        self.at = f"{request.method} {request.path}"
        self.killed = kill_node(self._node.pid)
        raise DropConnection


class Round:
    """One node with its bucket behind the proxy, and work that is repeated after each death."""

    def __init__(self, directory: Path, server: S3Server, proxy: S3Proxy, name: str, number: int, when: str) -> None:
        self.url = f"s3://{BUCKET}/{name}"
        self.node = Node(directory, store=self.url, settings=CALM, flags=["--s3-endpoint", proxy.endpoint])
        self.killer = Killer(proxy, self.node, number, when)
        self.history = History()
        self._server = server
        self._path = server.directory / BUCKET / name if server.directory is not None else None

    def close(self) -> None:
        self.node.kill()
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)

    # --- going on -----------------------------------------------------------------------------------------------------
    def start(self) -> None:
        try:
            self.node.start()
        except NodeFailed:
            self.revive()

    def insist(self, act: Callable[[], object], what: str) -> None:
        """Calls `act`, and again after each death, until it succeeds."""
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                act()
                return
            except (KafkaException, grpc.RpcError, AssertionError) as error:
                assert time.monotonic() < deadline, f"{what}: {error}"
                self.revive()

    def revive(self) -> None:
        if not self.node.running:
            assert self.killer.killed, self.node.output_tail()
            self.node.kill()
            self.node.settings = {**BUSY}
            self.node.start()

    def settled(self, log_start: int = 0, superseded: Collection[int] = ()) -> None:
        """Returns once the bucket is as a clean run leaves it: with all records from `log_start` on but the `superseded`."""
        sent = enumerate(send.content for send in self.history.sends.values())
        expected = [(offset, content) for offset, content in sent if offset >= log_start and offset not in superseded]
        deadline = time.monotonic() + WAIT_S
        while found := self._unsettled(log_start, len(expected)) or self._findings():
            assert time.monotonic() < deadline, f"killed at {self.killer.at}:\n" + "\n".join(found)
            self.revive()
            time.sleep(0.1)
        with bucket.opened(self.url, self._server.endpoint) as store:
            held = bucket.records(store, TOPIC)[0]
        assert [seen.offset for seen in held] == [offset for offset, _ in expected]
        assert [seen.content for seen in held] == [content for _, content in expected]

    def _findings(self) -> list[str]:
        """The findings in the whole bucket, because the cleaner may be making another object now."""
        with bucket.opened(self.url, self._server.endpoint) as store:
            return _but_probes(bucket.findings(store))

    def _unsettled(self, log_start: int, records: int) -> list[str]:
        with bucket.opened(self.url, self._server.endpoint) as store:
            found = _but_probes(bucket.findings(store, quick=True)) + [
                f"to be deleted: {key}" for key in bucket.waiting(store, TOPIC)
            ]
            starts = [manifest.log_start for manifest in bucket.manifests(store, TOPIC)]
            held = sum(map(len, bucket.records(store, TOPIC).values())) if not found else records
        found += [] if starts == [log_start] else [f"log starts {starts}"]
        return found + ([] if held <= records else [f"{held} records"])

    # --- the work -----------------------------------------------------------------------------------------------------
    def create(self, configs: dict[str, str]) -> None:
        def act() -> None:
            admin = AdminClient({"bootstrap.servers": self.node.kafka, "log_level": 2})
            try:
                admin.create_topics([NewTopic(TOPIC, 1, 1, config=configs)], request_timeout=3)[TOPIC].result(60)
            except KafkaException as error:
                if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                    raise

        self.insist(act, "creating the topic")

    def write(self, records: int, sizes: range) -> None:
        rng = random.Random(SEED)
        load = Load(self.history, self.node.kafka, TOPIC, 1, idempotent=1, plain=0, rng=rng, sizes=sizes)
        with load:
            load.more(records)
            while load.acknowledged < records:
                assert not load.failures, load.failures
                self.revive()
                time.sleep(0.01)

    def write_keys(self, keys: Iterable[bytes], size: int) -> None:
        """Each record has `size` bytes. The node must not die."""
        producer = Producer({"bootstrap.servers": self.node.kafka, "enable.idempotence": True})
        failures: list[object] = []
        for key in keys:
            number = len(self.history.sends)
            content = Content(key, b"%d" % number + b"." * size, 1_700_000_000_000 + number)
            self.history.sends[b"%d" % number] = Send("keys", number, 0, content)
            producer.produce(
                TOPIC,
                key=key,
                value=content.value,
                partition=0,
                timestamp=content.timestamp,
                on_delivery=lambda error, _: failures.append(error) if error is not None else None,
            )
        assert producer.flush(WAIT_S) == 0
        assert not failures

    def seal(self) -> None:
        self.insist(lambda: seal(self.node, TOPIC), "sealing")

    def alter(self, configs: dict[str, str]) -> None:
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in configs.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=entries)

        def act() -> None:
            admin = AdminClient({"bootstrap.servers": self.node.kafka, "log_level": 2})
            admin.incremental_alter_configs([resource], request_timeout=3)[resource].result(60)

        self.insist(act, "altering the topic")

    def plant_strays(self) -> int:
        """Leaves the remains of a writer that dies before its commit: two objects and an unfinished upload. Returns the base
        offset of the manifest's last segment."""
        with bucket.opened(self.url, self._server.endpoint) as store:
            manifest = next(iter(bucket.manifests(store, TOPIC)))
        prefix = self.url.removeprefix(f"s3://{BUCKET}/")
        client, ids = self._server.client, manifest.ids
        for key in (ids.segment_key(7, 1, "a" * 32), ids.sidecar_key(7, 1, "a" * 32)):
            client.put_object(Bucket=BUCKET, Key=f"{prefix}/{key}", Body=b"never named")
        client.create_multipart_upload(Bucket=BUCKET, Key=f"{prefix}/{ids.segment_key(8, 1, 'b' * 32)}")
        return manifest.segments[-1].base

    def sweep(self) -> None:
        """From here on, unnamed objects are swept soon."""
        self.killer.disarm()
        if self.node.settings != BUSY:
            self.node.stop()
            self.node.settings = {**BUSY}
            self.node.start()


# --- scenarios --------------------------------------------------------------------------------------------------------
def _but_probes(findings: list[str]) -> list[str]:
    """Leaves out the keys of interrupted probes, which a later probe deletes after two minutes (tested with the probe)."""
    return [finding for finding in findings if "/probe-" not in finding]


def offload(round: Round) -> None:
    round.killer.arm()
    round.start()
    round.create({**TIERED, "tidelog.tier.max.lag.ms": str(HOUR_MS)})
    round.write(200, range(100, 200))
    round.seal()
    round.sweep()
    round.settled()


def multipart(round: Round) -> None:
    round.start()
    round.create({**TIERED, "internal.segment.bytes": str(20 << 20), "tidelog.tier.max.lag.ms": str(HOUR_MS)})
    round.write(350, range(50_000, 50_001))
    round.killer.arm()
    round.seal()
    round.sweep()
    round.settled()


def retention(round: Round) -> None:
    round.node.settings = {**BUSY}
    round.start()
    round.create(TIERED)
    round.write(400, range(200, 300))
    round.seal()
    last = round.plant_strays()
    round.killer.arm()
    round.alter({"retention.bytes": "1"})
    round.settled(last)
    round.killer.disarm()


def compaction(round: Round) -> None:
    round.node.settings = {**BUSY}
    round.start()
    round.create({**TIERED, "tidelog.tier.max.lag.ms": str(HOUR_MS)})
    # The first two segments become one. Their remaining records do not fit one segment with the third segment's.
    for number, records in enumerate((40, 40, 110, 4)):
        each = range(records)
        round.write_keys((b"often" if i % 3 else b"once %d %d" % (number, i) for i in each), 250)
        round.seal()
    keys = [send.content.key for send in round.history.sends.values()]
    newest = len(keys) - 4  # where the newest segment begins, which is never rewritten and whose keys do not count
    latest = {key: offset for offset, key in enumerate(keys[:newest])}
    round.killer.arm()
    round.alter({"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"})
    round.settled(superseded={offset for offset in range(newest) if latest[keys[offset]] != offset})
    round.killer.disarm()


SCENARIOS = {"offload": offload, "multipart": multipart, "retention": retention, "compaction": compaction}


# --- tests ------------------------------------------------------------------------------------------------------------
CLEAN = 0


def run(directory: Path, server: S3Server, scenario: str, number: int, when: str) -> Killer:
    """One round that dies at request `number`, or never if that is CLEAN. The returned killer says whether it killed the
    node."""
    name = f"{scenario}-{number}-{when}-{os.urandom(4).hex()}"
    with S3Proxy(server.endpoint) as proxy:
        round = Round(directory / name, server, proxy, f"death/{name}", number, when)
        try:
            SCENARIOS[scenario](round)
        finally:
            print(f"{scenario}: request {number}, {when}: killed at {round.killer.at}")
            round.close()
        return round.killer


def die(directory: Path, server: S3Server, scenario: str, number: int, when: str) -> bool:
    """False if the work makes fewer requests. AssertionError if it made that many and nothing was killed."""
    for _ in range(TRIES if number <= floor(scenario, when) else 1):
        killer = run(directory, server, scenario, number, when)
        if killer.killed:
            return True
        assert killer.made < number, f"{scenario}: nothing died {when} request {number} of {killer.made}"
    return False


def floor(scenario: str, when: str) -> int:
    return (FLOORS_OF_CHANGES if when == AFTER else FLOORS)[scenario]


def sample(count: int) -> list[tuple[str, int, str]]:
    rng = random.Random(SEED)
    chosen = [(scenario, rng.choice((BEFORE, AFTER))) for scenario in FLOORS for _ in range(count)]
    return [(scenario, rng.randrange(floor(scenario, when)) + 1, when) for scenario, when in chosen]


def numbers(scenario: str, when: str, part: int, every: int) -> Iterator[int]:
    """The request numbers of one part, without end. Together the parts have every `every`-th number; the seed chooses the
    first."""
    first = 1 + random.Random(f"{SEED} {scenario} {when}").randrange(every)
    return itertools.count(first + part * every, PARTS * every)


@pytest.mark.parametrize("every", [1, EVERY])
def test_the_parts_share_the_requests(every: int) -> None:
    for scenario, when in itertools.product(SCENARIOS, (BEFORE, AFTER)):
        parts = [itertools.islice(numbers(scenario, when, part, every), 10) for part in range(PARTS)]
        died_at = sorted(itertools.chain(*parts))
        assert died_at == list(range(died_at[0], died_at[0] + 10 * PARTS * every, every))
        assert 1 <= died_at[0] <= min(every, floor(scenario, when))


@pytest.mark.parametrize(("scenario", "number", "when"), sample(2))
def test_a_node_that_dies_at_sampled_requests_completes_its_work(
    tmp_path: Path, versitygw: S3Server, scenario: str, number: int, when: str
) -> None:
    print(f"TIDELOG_FAULT_SEED={SEED}")
    assert die(tmp_path, versitygw, scenario, number, when)


@pytest.mark.faults
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_clean_run_settles(tmp_path: Path, versitygw: S3Server, scenario: str) -> None:
    killer = run(tmp_path, versitygw, scenario, CLEAN, BEFORE)
    assert not killer.killed
    assert killer.made >= FLOORS[scenario]


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("when", [BEFORE, AFTER])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_node_that_dies_at_request_after_request_completes_its_work(
    tmp_path: Path, versitygw: S3Server, scenario: str, when: str, part: int
) -> None:
    print(f"TIDELOG_FAULT_SEED={SEED}")
    for number in numbers(scenario, when, part, EVERY):
        if not die(tmp_path, versitygw, scenario, number, when):
            assert number > floor(scenario, when), f"{scenario} makes only {number - 1} requests"
            break


@pytest.mark.faults
def test_the_tier_process_dies_at_some_requests(tmp_path: Path, versitygw: S3Server) -> None:
    """Only the tier process dies: the broker keeps running, starts another, and asks it again."""
    rng = random.Random(SEED)
    print(f"TIDELOG_FAULT_SEED={SEED}")
    with a_world(tmp_path, versitygw, TOPIC, settings=SWEEPING) as world:
        pid = world.node.pid
        struck: list[bool] = []

        def kill(lose_answer: bool) -> Action:
            async def act(request: Request, forward: Forward) -> Answer:
                if lose_answer:
                    await forward(request)
                struck.append(kill_tier(pid))
                raise DropConnection

            return act

        def die_once() -> None:
            before = len(struck)
            world.proxy.on(rng.randrange(1, 12), kill(rng.random() < 0.5))
            world.write(100)
            world.offload()
            until(lambda: len(struck) > before, "the tier process makes the request that it dies at")

        world.create()
        for _ in range(5):
            die_once()
        assert all(struck)
        world.swept()
        assert world.node.pid == pid and world.node.running
