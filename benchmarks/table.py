"""The figures of a run: all rounds, their medians, the ratio to a rival, the target, and whether it is met."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

JUDGED = "tidelog"
#: The row of a scan beside a producer. The scan must keep half of the rate that it has alone.
BESIDE = "cold consume beside produce"
#: Rows with the worst figure of the parts `stalls` and `callers`.
MOST_IN_A_STALL = "any API's largest request: most processor time in a stall"
MOST_IN_A_CALLERS_STALL = "callers of gRPC that ask for too much: most processor time in a stall"
#: Rows of the part `moves`.
MOVED_WAIT = "a partition moves: longest wait for an acknowledgement meanwhile"
MOVED_BYTES = "a partition moves: bytes to the bucket"
#: Columns of the part `cluster`, in which tidelog has two brokers: a single one, and the rate at which the client and both
#: brokers would use both cores fully.
ONE_BROKER, TWO_CORES = "one broker", "two cores"
#: The suffix of the rows of the part `cluster` that leave the client's processor time out.
OVER = "brokers alone"


def cluster_row(row: str) -> str:
    """The name of a row of `fleet` in the part `cluster`."""
    return f"two brokers: {row}"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A target. The ratio to `rival`, or without a rival the figure itself, must be at least `bound`, or at most `bound`
    with `less_is_better`.

    If `provided` names a row, the verdict counts only if that row's targets are met in the same run."""

    rival: str
    bound: float
    less_is_better: bool = False
    provided: str = ""

    def met(self, value: float) -> bool:
        return value <= self.bound if self.less_is_better else value >= self.bound

    def __str__(self) -> str:
        bound = f"{'≤' if self.less_is_better else '≥'} {self.bound:g}"
        return f"{bound} × {self.rival}" if self.rival else bound


_KAFKA = {
    "produce 200 B, one at a time": 0.85,
    "produce 200 B, five in flight": 1.8,
    "produce 16 KiB batches": 1.3,
    "produce 64 KiB batches": 1.3,
    "produce 256 KiB batches": 1.2,
    "fetch, 1 MiB": 0.9,
    "200 connections, 1 KiB each": 0.9,
    "16 connections x own partition, 16 KiB": 1.1,
    "16 connections x own partition, 64 KiB": 1.1,
    "4 connections, requests of 16 partitions x 4 KiB": 1.1,
    "4 connections, requests of 16 partitions x 200 B": 1.1,
    "16 connections, acks=all, 1 KiB": 1.1,
    "sustained produce, segments of 64 MiB roll": 1.0,
    "Java producer, 1 M x 1 KiB, acks=1": 1.0,
    "Java producer, 3 M x 100 B, acks=all": 1.0,
    "Java consumer with assign(), the same": 0.9,
    "offset commits, one connection, one after another": 1.2,
    "offset commits, 50 connections of 50 groups": 0.8,
    "heartbeats, 50 connections": 0.8,
    "transactions of 10 records, one producer": 2.0,
    "consume-transform-produce loop, 100 records a transaction": 1.2,
    "compaction of 1 KiB records, a tenth stays": 1.0,
    "compaction of 1 KiB records in lz4 batches, a tenth stays": 1.0,
}
_KAFKA_AT_MOST = {
    "latency at 1,000/s while 20 MiB/s roll segments, p99": 1.0,
    "200 connections, p99": 1.0,
    "latency of one record at 1,000/s, p50": 1.0,
    "latency of one record at 1,000/s, p99": 1.0,
    "resident memory after the rows": 0.4,
    "start to first answer": 0.5,
    "a broker is killed: until its partition takes a record": 0.5,
    "the controller is killed: until a topic can be created": 0.5,
    "10,000 partitions of three brokers: until all have leaders": 0.5,
    "10,000 partitions of three brokers: restart after kill -9": 0.15,
    "10,000 partitions: restart after kill -9 until ten accept": 0.5,
    "10,000 partitions: resident memory afterwards": 0.5,
    "join to stable, 3 members": 1.0,
    "join to stable, 100 members": 1.0,
    "join to stable, 500 members": 1.0,
    "group of 2,000 members of which one leaves: until the others are stable": 1.0,
    "2,000 groups of 10 partitions: memory they add": 0.5,
    "1,000,000 committed offsets: memory they add": 1.0,
    "1,000,000 committed offsets: start until all groups answer": 1.0,
}
#: Rows of `fleet` whose targets for two brokers are their rate, p99 and processor time.
_CLUSTER = (
    "16 connections x own partition, 16 KiB",
    "16 connections x own partition, 64 KiB",
    "4 connections, requests of 16 partitions x 4 KiB",
    "16 connections, acks=all, 1 KiB",
)
_HISTORIES = "24", "8,192", "100,000", "1,000,000", "10,000,000"
#: tidelog's own targets, by row.
WANTED: dict[str, tuple[Wanted, ...]] = {
    **{row: (Wanted("kafka", bound),) for row, bound in _KAFKA.items()},
    **{row: (Wanted("kafka", bound, less_is_better=True),) for row, bound in _KAFKA_AT_MOST.items()},
    **{cluster_row(row): (Wanted("kafka", 1.3), Wanted(TWO_CORES, 0.9)) for row in _CLUSTER},
    **{cluster_row(f"{row}: p99"): (Wanted("kafka", 1.0, less_is_better=True),) for row in _CLUSTER},
    **{cluster_row(f"{row}: broker processor"): (Wanted("kafka", 0.75, less_is_better=True),) for row in _CLUSTER},
    **{cluster_row(f"{row}: {OVER}"): (Wanted(ONE_BROKER, 1.6),) for row in _CLUSTER},
    cluster_row("memory of all processes (PSS), idle"): (Wanted("", 200.0, less_is_better=True),),
    cluster_row("memory of all processes (PSS), after the rows"): (Wanted("kafka", 0.75, less_is_better=True),),
    "resident memory of an idle node": (Wanted("", 100.0, less_is_better=True),),
    "cold consume": (Wanted("ranged GETs", 0.5),),
    "produce p99 beside a cold scan": (
        Wanted("idle", 3.0, less_is_better=True, provided=BESIDE),
        Wanted("burners", 2.0, less_is_better=True, provided=BESIDE),
    ),
    BESIDE: (Wanted("alone", 0.5),),
    "metadata commands, 64 at once, sent to another broker": (Wanted("", 2000.0),),
    "10,000 topics and 1,000 partition changes/s: a broker's loop": (Wanted("", 20.0, less_is_better=True),),
    "10,000 topics and 1,000 partition changes/s: most processor time in a stall": (
        Wanted("", 5.0, less_is_better=True),
    ),
    MOVED_WAIT: (Wanted("", 1000.0, less_is_better=True),),
    MOVED_BYTES: (Wanted("", 83.9, less_is_better=True),),
    MOST_IN_A_STALL: (Wanted("", 20.0, less_is_better=True),),
    MOST_IN_A_CALLERS_STALL: (Wanted("", 20.0, less_is_better=True),),
    "SDK producer with asyncio, 100 B": (Wanted("", 300_000.0),),
    "SDK producer without asyncio, 100 B": (Wanted("", 200_000.0),),
    "Java producer, 1 KiB, acks=all: idempotent": (Wanted("plain", 0.9),),
    "Java producer, 1 KiB, acks=all: in transactions of 500 ms": (Wanted("plain", 0.85),),
    "Java consumer of these, read_committed": (Wanted("read_uncommitted", 0.85),),
    "compaction with a full dedupe buffer: peak memory of the cleaner": (
        Wanted("dedupe buffer", 1.0, less_is_better=True),
    ),
    "join to stable with the default delay, 1 member": (Wanted("delay + 100 ms", 1.0, less_is_better=True),),
    "join to stable with the default delay, 100 members": (Wanted("delay + 100 ms", 1.0, less_is_better=True),),
    "a group of 2,000 rebalances: most processor time in a stall": (Wanted("", 5.0, less_is_better=True),),
    "the same from the bucket, read_committed": (Wanted("read_uncommitted", 0.85),),
    "produce p99 while a group of 2,000 rebalances": (Wanted("idle", 2.0, less_is_better=True),),
    "GETs per GiB scanned": (Wanted("", 260.0, less_is_better=True),),
    "100 cold consumers of 50 MiB: downloads in flight": (Wanted("budget", 1.0, less_is_better=True),),
    "100 cold consumers of 50 MiB: chunks on disk": (Wanted("budget", 1.0, less_is_better=True),),
    "100 cold consumers of 50 MiB: memory they add": (Wanted("budget", 1.0, less_is_better=True),),
    **{f"retention's decision, {count} segments": (Wanted("", 20.0, less_is_better=True),) for count in _HISTORIES},
    "an idle partition": (Wanted("", 0.0, less_is_better=True),),
    "sweep of a cluster": (Wanted("", 1.01, less_is_better=True),),
    "cold read of one record, broker": (Wanted("", 2.0, less_is_better=True),),
    "a commit's PUTs of the manifest, full pages: amortised": (Wanted("", 2.0, less_is_better=True),),
    "a commit's PUTs of the manifest, full pages: at most": (Wanted("", 4.0, less_is_better=True),),
    "a commit's PUTs of the manifest, two levels of pages: amortised": (Wanted("", 2.0, less_is_better=True),),
    "a commit's PUTs of the manifest, two levels of pages: at most": (Wanted("", 4.0, less_is_better=True),),
    "decode 100 B records, none": (Wanted("", 15.0),),
    "Spark scan of cold 100 B records, local[2]": (Wanted("kafka", 5.0), Wanted("prebuilt", 0.6)),
}


@dataclass
class Row:
    """`rounds` has the figures of each column. A column is a broker, or something else that is measured for comparison."""

    name: str
    unit: str
    rounds: dict[str, list[float]] = field(default_factory=dict)

    @property
    def medians(self) -> dict[str, float]:
        return {name: statistics.median(values) for name, values in self.rounds.items()}

    def spread(self, name: str) -> str:
        """The lowest and the highest figure of the rounds; empty for a single round."""
        values = self.rounds.get(name, [])
        return f"{written(min(values))} to {written(max(values))}" if len(values) > 1 else ""

    def judged(self, wanted: Wanted) -> float | None:
        """The figure that `wanted` judges; None if unknown."""
        medians = self.medians
        if JUDGED not in medians or (wanted.rival and not medians.get(wanted.rival)):
            return None
        return medians[JUDGED] / medians[wanted.rival] if wanted.rival else medians[JUDGED]


@dataclass
class Table:
    """The rows of a run; `notes` are sentences with further counts."""

    rows: dict[tuple[str, str], Row] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, broker: str, name: str, unit: str, value: float) -> None:
        row = self.rows.setdefault((name, unit), Row(name, unit))
        row.rounds.setdefault(broker, []).append(value)


def verdicts(row: Row, rows: Sequence[Row]) -> list[tuple[Wanted, float, str]]:
    """Returns each target of `row` with its figure and "met", "missed", or "void" if a target of its `provided` row is not
    met."""
    found: list[tuple[Wanted, float, str]] = []
    for wanted in WANTED.get(row.name, ()):
        value = row.judged(wanted)
        if value is None:
            continue
        others = (other for other in rows if other.name == wanted.provided)
        if all(verdict == "met" for other in others for _, _, verdict in verdicts(other, rows)):
            found.append((wanted, value, "met" if wanted.met(value) else "missed"))
        else:
            found.append((wanted, value, "void"))
    return found


def rendered(rows: Sequence[Row]) -> str:
    """Returns a Markdown table. It has the median of each column and, below it, the lowest and the highest round; tidelog's
    ratio to each other column; the target, and whether it is met."""
    brokers = list(dict.fromkeys(name for row in rows for name in row.medians))
    others = [name for name in brokers if name != JUDGED]
    head = ["row", "unit", *brokers, *(f"{JUDGED} / {name}" for name in others), "target", "verdict"]
    lines = ["| " + " | ".join(head) + " |", "|---|---|" + "---:|" * (len(head) - 4) + "---|---|"]
    for row in rows:
        medians = row.medians
        cells = [row.name, row.unit]
        cells += [_cell(row, name) for name in brokers]
        for name in others:
            cells.append(f"{medians[JUDGED] / medians[name]:.2f}" if medians.get(name) and JUDGED in medians else "")
        judged = verdicts(row, rows)
        cells.append(", ".join(str(wanted) for wanted, _, _ in judged))
        cells.append(", ".join(emphasised(verdict) for _, _, verdict in judged))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


#: The rows that the README shows: one for each kind of load, and the cost of memory and history. Kafka wins one of them.
CHOSEN = (
    "produce 200 B, five in flight",
    "16 connections x own partition, 64 KiB",
    "latency of one record at 1,000/s, p99",
    "resident memory after the rows",
    "cold consume",
)


def summary(rows: Sequence[Row]) -> str:
    """Returns a Markdown table with one line for each target of the rows, whatever its rival."""
    lines = ["| row | rival | tidelog | ratio | target | verdict |", "|---|---:|---:|---:|---|---|"]
    for row in rows:
        for wanted, value, verdict in verdicts(row, rows):
            rival = written(row.medians[wanted.rival]) if wanted.rival else ""
            ratio = f"{value:.2f}" if wanted.rival else ""
            own = f"{written(row.medians[JUDGED])} {row.unit}"
            lines.append(f"| {row.name} | {rival} | {own} | {ratio} | {wanted} | {emphasised(verdict)} |")
    return "\n".join(lines)


def _cell(row: Row, name: str) -> str:
    if name not in row.medians:
        return ""
    spread = row.spread(name)
    return written(row.medians[name]) + (f"<br>{spread}" if spread else "")


def emphasised(verdict: str) -> str:
    return verdict if verdict == "met" else f"**{verdict}**"


def written(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
