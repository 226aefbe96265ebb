"""The part `changes`: the event loop of a broker in a cluster of 10,000 topics while 1,000 partitions a second change.

Three brokers, of which broker 1 has the controller. A client creates topics and deletes the ones before, at a steady rate.
Their partitions are spread over all brokers. Broker 2 gets the requests, broker 3 is measured, twice in each round: first the
share of a core that its event loop uses, then, beside the probe of `stalls`, the most processor time of the loop in any one
wait of the probe.
"""

from __future__ import annotations

import datetime as dt
import time
from pathlib import Path

from kio.schema.create_topics.v5 import request as create_request
from kio.schema.create_topics.v5 import response as create_response
from kio.schema.delete_topics.v5 import request as delete_request
from kio.schema.delete_topics.v5 import response as delete_response
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i16, i32, i32Timedelta

from benchmarks.load import Connection, LoadFailed
from benchmarks.processor import LoopTime
from benchmarks.stalls import Probe
from benchmarks.table import Table
from tests.support.cluster import Cluster

ASKED, MEASURED = 2, 3
BROKERS = (1, 2, 3)
TOPICS, TOPICS_A_REQUEST = 10_000, 500
#: Topics that a step creates, each of PARTITIONS; the step deletes as many.
TOPICS_A_STEP, PARTITIONS = 2, 25
STEP_S = 0.1
CHANGES_A_STEP = 2 * TOPICS_A_STEP * PARTITIONS
_PATIENCE = i32Timedelta.parse(dt.timedelta(seconds=60))
NAME = "10,000 topics and 1,000 partition changes/s"


def measure(table: Table, directory: Path, *, rounds: int, seconds: float, topics: int = TOPICS) -> None:
    """Adds the rows of `rounds` measurements of `seconds` each. LoadFailed if the cluster refuses a topic."""
    with Cluster(directory / "tidelog", f"file://{directory / 'store'}") as ours:
        client = Connection(ours.nodes[ASKED].kafka)
        client.socket.settimeout(120)
        for first in range(0, topics, TOPICS_A_REQUEST):
            _create(client, [f"kept-{n}" for n in range(first, min(first + TOPICS_A_REQUEST, topics))], 1)
        _create(client, ["small"], 1, on=MEASURED)
        ours.wait_leaders(ASKED, "small", {MEASURED})
        node = ours.nodes[MEASURED]
        assert node.pid is not None
        loop = LoopTime(node.pid)
        for number in range(rounds):
            before, began = loop.seconds(), time.perf_counter()
            steps = _change(client, f"changed-{number}", seconds)
            elapsed = time.perf_counter() - began
            table.add("tidelog", f"{NAME}: rate", "changes/s", steps * CHANGES_A_STEP / elapsed)
            share = (loop.seconds() - before) / elapsed
            table.add("tidelog", f"{NAME}: a broker's loop", "% of a core", 100 * share)
            with Probe(node.kafka, node.pid) as probe:
                _change(client, f"probed-{number}", seconds)
                _, processor = probe.result()
            table.add("tidelog", f"{NAME}: most processor time in a stall", "ms", processor)
        client.close()


def _change(client: Connection, name: str, seconds: float) -> int:
    """Changes partitions at the steady rate; returns the number of steps."""
    began, step, last = time.perf_counter(), 0, list[str]()
    while time.perf_counter() < began + seconds:
        names = [f"{name}-{step}-{n}" for n in range(TOPICS_A_STEP)]
        _create(client, names, PARTITIONS)
        if last:
            _delete(client, last)
        last, step = names, step + 1
        time.sleep(max(0.0, began + step * STEP_S - time.perf_counter()))
    _delete(client, last)
    return step


def _create(client: Connection, names: list[str], partitions: int, on: int | None = None) -> None:
    """Creates topics whose partitions are on the broker `on`, or on the brokers in turn."""
    made = tuple(
        create_request.CreatableTopic(
            name=TopicName(name),
            num_partitions=i32(-1),
            replication_factor=i16(-1),
            assignments=tuple(
                create_request.CreatableReplicaAssignment(
                    partition_index=i32(number),
                    broker_ids=(BrokerId(on or BROKERS[(place + number) % len(BROKERS)]),),
                )
                for number in range(partitions)
            ),
            configs=(),
        )
        for place, name in enumerate(names)
    )
    asked = create_request.CreateTopicsRequest(topics=made, timeout=_PATIENCE, validate_only=False)
    for each in client.call(asked, create_response.CreateTopicsResponse).topics:
        if int(each.error_code):
            raise LoadFailed(f"create {each.name}: {each.error_code}")


def _delete(client: Connection, names: list[str]) -> None:
    asked = delete_request.DeleteTopicsRequest(topic_names=tuple(map(TopicName, names)), timeout=_PATIENCE)
    for each in client.call(asked, delete_response.DeleteTopicsResponse).responses:
        if int(each.error_code):
            raise LoadFailed(f"delete {each.name}: {each.error_code}")
