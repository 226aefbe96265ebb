"""The figures of a run: medians of rounds, the ratio to a rival, what is wanted of it; kept as JSON, shown as text and PNG."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
FIGURES = RESULTS / "figures.json"
JUDGED = "tidelog"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Of the ratio to the rival: at least (or, where less is better, at most) `bound`."""

    rival: str
    bound: float
    less_is_better: bool = False

    def met(self, ratio: float) -> bool:
        return ratio <= self.bound if self.less_is_better else ratio >= self.bound

    def __str__(self) -> str:
        return f"{'≤' if self.less_is_better else '≥'} {self.bound:g}"


_KAFKA = {
    "produce 200 B, one at a time": 0.85,
    "produce 200 B, five in flight": 1.8,
    "produce 16 KiB batches": 1.3,
    "produce 64 KiB batches": 1.3,
    "produce 256 KiB batches": 1.2,
    "fetch, 1 MiB": 0.9,
    "200 connections, 1 KiB each": 0.5,
    "Java producer, 1 M x 1 KiB, acks=1": 1.0,
    "Java producer, 3 M x 100 B, acks=all": 1.0,
    "Java consumer with assign(), the same": 0.9,
}
_KAFKA_AT_MOST = {
    "200 connections, p99": 1.0,
    "latency of one record at 1,000/s, p50": 1.0,
    "latency of one record at 1,000/s, p99": 1.0,
    "resident memory after the rows": 0.4,
    "start to first answer": 0.5,
    "10,000 partitions: restart after kill -9 until ten accept": 0.5,
    "10,000 partitions: resident memory then": 0.5,
}
#: What tidelog promises itself, by row.
WANTED: dict[str, tuple[Wanted, ...]] = {
    **{row: (Wanted("kafka", bound),) for row, bound in _KAFKA.items()},
    **{row: (Wanted("kafka", bound, less_is_better=True),) for row, bound in _KAFKA_AT_MOST.items()},
    "cold consume": (Wanted("ranged GETs", 0.5),),
    "produce p99 beside a cold scan": (Wanted("idle", 3.0, less_is_better=True),),
    "cold consume beside produce": (Wanted("alone", 0.5),),
    "GETs per GiB scanned": (Wanted("bound", 1.0, less_is_better=True),),
    "decode 100 B records, none": (Wanted("bound", 1.0),),
    "Spark scan of cold 100 B records, local[2]": (Wanted("kafka", 5.0), Wanted("prebuilt", 0.6)),
}


@dataclass
class Table:
    """`seen[row, unit][broker]` are the figures of all rounds. `notes` say what the machine is and what was counted beside."""

    seen: dict[tuple[str, str], dict[str, list[float]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, broker: str, row: str, unit: str, value: float) -> None:
        self.seen.setdefault((row, unit), {}).setdefault(broker, []).append(value)

    def medians(self) -> list[dict[str, Any]]:
        return [
            {"row": row, "unit": unit, "medians": {name: statistics.median(v) for name, v in values.items()}}
            for (row, unit), values in self.seen.items()
        ]


def rendered(rows: list[dict[str, Any]]) -> str:
    """A Markdown table: every broker's median, tidelog's ratio to each other one, what is wanted and whether it is met."""
    brokers = list(dict.fromkeys(name for row in rows for name in row["medians"]))
    others = [name for name in brokers if name != JUDGED]
    head = ["row", "unit", *brokers, *(f"{JUDGED} / {name}" for name in others), "wanted"]
    lines = ["| " + " | ".join(head) + " |", "|---|---|" + "---:|" * (len(head) - 2)]
    for row in rows:
        medians = row["medians"]
        ratios = {name: medians[JUDGED] / medians[name] for name in others if medians.get(name) and JUDGED in medians}
        wanted = [each for each in WANTED.get(row["row"], ()) if each.rival in ratios]
        verdict = ", ".join(
            f"{f'{each.rival} ' * (len(wanted) > 1)}{each} {'✓' if each.met(ratios[each.rival]) else '✗ missed'}"
            for each in wanted
        )
        cells = [row["row"], row["unit"]]
        cells += [f"{medians[name]:.4g}" if name in medians else "" for name in brokers]
        cells += [f"{ratios[name]:.2f}" if name in ratios else "" for name in others]
        lines.append("| " + " | ".join([*cells, verdict]) + " |")
    return "\n".join(lines)


def keep(part: str, table: Table) -> None:
    """Puts one part's figures in the place of its last ones, and writes the page and the plot anew."""
    kept: dict[str, Any] = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    kept[part] = {"notes": table.notes, "rows": table.medians()}
    RESULTS.mkdir(exist_ok=True)
    FIGURES.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    page = ["# Speed and memory", "", "Written by `python -m benchmarks.run --write`; medians of interleaved rounds."]
    for name, figures in kept.items():
        page += ["", f"## {name}", "", rendered(figures["rows"]), "", *figures["notes"]]
    (RESULTS / "README.md").write_text("\n".join(page) + "\n")
    plot([row for figures in kept.values() for row in figures["rows"]], RESULTS / "speed.png")


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """How many times as good as Kafka, each row; what is wanted as a mark."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    bars: list[tuple[str, float, float]] = []
    for row in rows:
        medians = row["medians"]
        wanted = next((each for each in WANTED.get(row["row"], ()) if each.rival == "kafka"), None)
        if wanted is None or not medians.get("kafka") or not medians.get(JUDGED):
            continue
        ratio = medians[JUDGED] / medians["kafka"]
        better = (1 / ratio, 1 / wanted.bound) if wanted.less_is_better else (ratio, wanted.bound)
        bars.append((f"{row['row']} ({row['unit']})", *better))
    if not bars:
        return
    figure, axes = pyplot.subplots(figsize=(9, 0.36 * len(bars) + 1.2))
    places = range(len(bars))
    axes.barh(places, [bar[1] for bar in bars], height=0.6, color="#2f6f9f", label="tidelog")
    axes.scatter([bar[2] for bar in bars], places, marker="|", s=160, color="#c0392b", label="wanted", zorder=3)
    axes.axvline(1, color="black", linewidth=0.8, label="Apache Kafka 4.2.1")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    axes.set_yticks(places, [bar[0] for bar in bars])
    axes.invert_yaxis()
    axes.set_xlabel("times as good as Kafka (rates: higher; times and memory: lower)")
    axes.legend(loc="lower right", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
