"""Keeps the results of runs, one JSON file per part under benchmarks/results, and generates the tables of the docs and a plot.

    python -m benchmarks.report                 generates the tables and the plot again from the saved results

In README.md and docs/performance.md this module writes the lines between `<!-- benchmarks: NAME -->` and `<!-- end -->`. NAME
is a part, `summary`, or `chosen` (a few rows of the summary). All other text there is written by hand.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import re
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.table import CHOSEN, JUDGED, Row, Table, Wanted, rendered, summary, verdicts, written

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGES = (ROOT / "README.md", ROOT / "docs" / "performance.md")
PLOT = ROOT / "docs" / "img" / "speed.png"
PARTS = (
    "requests",
    "fleet",
    "cluster",
    "moves",
    "controllers",
    "changes",
    "beside",
    "starts",
    "java",
    "partitions",
    "cold",
    "decoder",
    "spark",
    "stalls",
    "callers",
    "sdk",
    "groups",
    "transactions",
    "compaction",
    "coordinators",
    "history",
)
_PLACE = re.compile(r"(<!-- benchmarks: ([a-z]+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Kept:
    """The results of one part of one run. `cut_short` is the reason why rows or rounds are missing, or empty."""

    part: str
    date: str
    commit: str
    machine: str
    load_average: float
    rounds: int
    notes: list[str]
    rows: list[Row]
    cut_short: str = ""

    @property
    def description(self) -> str:
        ended = f" Cut short: {self.cut_short}." if self.cut_short else ""
        rounds = f"{self.rounds} round{'' if self.rounds == 1 else 's'}"
        return (
            f"{self.date}, commit {self.commit}, {self.machine}; {rounds}, load average "
            f"{self.load_average:.1f} at the end.{ended}"
        )


def described(part: str, table: Table, *, rounds: int, cut_short: str = "") -> Kept:
    return Kept(
        part=part,
        date=f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC",
        commit=_commit(),
        machine=_machine(),
        load_average=os.getloadavg()[1],
        rounds=rounds,
        notes=table.notes,
        rows=list(table.rows.values()),
        cut_short=cut_short,
    )


def keep(kept: Kept) -> None:
    """Saves the results of a part in place of its earlier ones."""
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(asdict(kept), indent=1, ensure_ascii=False)
    (RESULTS / f"{kept.part}.json").write_text(text + "\n")


def read() -> dict[str, Kept]:
    """Returns the saved results by part, in the order of PARTS."""
    found: dict[str, Kept] = {}
    for part in PARTS:
        path = RESULTS / f"{part}.json"
        if path.exists():
            fields = json.loads(path.read_text())
            found[part] = Kept(**{**fields, "rows": [Row(**row) for row in fields["rows"]]})
    return found


def write() -> None:
    """Generates the tables in the pages, and the plot."""
    parts = read()
    everything = [row for kept in parts.values() for row in kept.rows]

    def filled(place: re.Match[str]) -> str:
        begin, name, end = place.groups()
        if name in ("summary", "chosen"):
            rows = everything if name == "summary" else [row for row in everything if row.name in CHOSEN]
            return f"{begin}{summary(rows)}\n{_age(list(parts.values()))}{end}"
        if name not in parts:
            return place.group()
        kept = parts[name]
        lines = [rendered(kept.rows), "", *kept.notes, kept.description]
        return begin + "\n".join(lines) + "\n" + end

    for page in PAGES:
        text = page.read_text()
        if (renewed := _PLACE.sub(filled, text)) != text:
            page.write_text(renewed)
    plot(everything, PLOT)


def _age(parts: list[Kept]) -> str:
    """Describes the runs behind a table. Parts are measured at different times, so its rows may come from different commits."""
    if not parts:
        return ""
    oldest, newest = (choose(parts, key=lambda kept: kept.date) for choose in (min, max))
    return (
        f"\nFrom runs between {oldest.date} (commit {oldest.commit}) and {newest.date} (commit {newest.commit}). The tables of "
        "docs/performance.md name the run, the number of rounds and the machine of each row.\n"
    )


def plot(rows: list[Row], path: Path) -> None:
    """Plots each row's ratio to Kafka, above 1 if tidelog is better, with its target as a mark."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    bars = [
        (row, wanted, value)
        for row in rows
        for wanted, value, _ in verdicts(row, rows)
        if wanted.rival == "kafka" and value
    ]
    if not bars:
        return
    places = range(len(bars))
    better = [1 / value if wanted.less_is_better else value for _, wanted, value in bars]
    figure, axes = pyplot.subplots(figsize=(10, 0.36 * len(bars) + 1.4))
    colours = ["#2f6f9f" if wanted.met(value) else "#b4654a" for _, wanted, value in bars]
    axes.barh(places, [times - 1 for times in better], left=1, height=0.62, color=colours)
    marks = [1 / wanted.bound if wanted.less_is_better else wanted.bound for _, wanted, _ in bars]
    axes.scatter(marks, places, marker="|", s=170, color="#222222", label="target", zorder=3)
    axes.axvline(1, color="black", linewidth=0.8)
    for place, times in zip(places, better, strict=True):
        axes.annotate(
            f"{times:.2g}×" if times >= 10 else f"{times:.2f}×",
            (max(times, 1), place),
            (5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(*better, 0.4) / 1.2, max(*better, *marks, 2) * 1.5)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    axes.set_yticks(places, [_label(row, wanted) for row, wanted, _ in bars], fontsize=9)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel(
        "ratio to Apache Kafka 4.2.1 in the same run:\nabove 1 tidelog is better (Kafka's figure in brackets)",
        fontsize=9,
    )
    axes.legend(loc="lower right", fontsize=8, frameon=False)
    figure.tight_layout()
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=120)


def _label(row: Row, wanted: Wanted) -> str:
    medians = row.medians
    return f"{row.name}: {written(medians[JUDGED])} {row.unit} ({written(medians[wanted.rival])})"


def _machine() -> str:
    model = platform.processor() or platform.machine()
    memory_kib = 0
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal"):
            memory_kib = int(line.split()[1])
    return (
        f"{os.cpu_count()} cores of {model}, {memory_kib / (1 << 20):.0f} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}"
    )


def _commit() -> str:
    """The measured commit, followed by a plus if source files have uncommitted changes."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, check=False, capture_output=True, text=True)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "*.py", "*.pyx", "*.pxd")
    return (git("rev-parse", "--short=10", "HEAD") or "unknown") + ("+" if changed else "")


if __name__ == "__main__":
    write()
