"""`make bench`: tidelog beside the floor (and any rival), rows interleaved round by round, medians and ratios printed.

  python -m benchmarks.run [--rounds 3] [--seconds 2] [--only WORD] [--rival NAME=HOST:PORT] [--write]

The machine changes from minute to minute, so only ratios within one run count; `--write` puts the table and its plot under
benchmarks/results.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks import load, raw
from tests.support.node import Node

RESULTS = Path(__file__).parent / "results"
Table = dict[tuple[str, str], dict[str, list[float]]]


@contextmanager
def floor_broker(directory: Path) -> Iterator[str]:
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.floor", str(port), str(directory)])
    try:
        wait_for_port(port)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def wait_for_port(port: int, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.05)
    raise load.LoadFailed(f"nothing listens on port {port} after {seconds} s")


def resident_megabytes(pid: int) -> float:
    """Of the process and its children."""
    own = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return own + sum(resident_megabytes(int(child)) for child in children)


def measure(brokers: dict[str, str], *, rounds: int, seconds: float, only: str) -> Table:
    seen: Table = {}
    for n in range(rounds):
        for name, address in brokers.items():
            for row, unit, value in load.one_round(address, f"{os.getpid()}-{n}", seconds, only):
                seen.setdefault((row, unit), {}).setdefault(name, []).append(value)
    return seen


def rendered(seen: Table, brokers: dict[str, str], judged: str) -> str:
    others = [b for b in brokers if b != judged]
    lines = [
        "| " + " | ".join(["row", "unit", *brokers, *(f"{judged} / {o}" for o in others)]) + " |",
        "|---|---|" + "---:|" * (len(brokers) + len(others)),
    ]
    for (row, unit), values in seen.items():
        medians = {name: statistics.median(v) for name, v in values.items()}
        ratios = (f"{medians[judged] / medians[o]:.2f}" for o in others)
        lines.append("| " + " | ".join([row, unit, *(f"{medians[b]:.4g}" for b in brokers), *ratios]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--rival", action="append", default=[], metavar="NAME=HOST:PORT")
    parser.add_argument("--write", action="store_true", help="keep the table and its plot in benchmarks/results")
    args = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="tidelog-bench-"))
    try:
        with ExitStack() as stack:
            brokers = dict(r.split("=", 1) for r in args.rival)
            brokers["floor"] = stack.enter_context(floor_broker(directory / "floor"))
            node = stack.enter_context(Node(directory / "node", store=f"file://{directory}/store"))
            brokers["tidelog"] = node.kafka
            idle = resident_megabytes(node.pid)
            seen = measure(brokers, rounds=args.rounds, seconds=args.seconds, only=args.only)
            after = resident_megabytes(node.pid)
        report = "\n".join(
            [
                rendered(seen, brokers, "tidelog"),
                "",
                f"Resident memory of the node: {idle:.0f} MB idle, {after:.0f} MB after these rows (all its processes).",
                f"The machine itself: loopback {raw.loopback_megabytes_per_second():.0f} MB/s, "
                f"{raw.loopback_round_trips_per_second():.0f} round trips/s of 200 B, "
                f"file append {raw.file_write_megabytes_per_second(str(directory)):.0f} MB/s (page cache).",
                f"{dt.datetime.now(dt.UTC):%Y-%m-%d}, {os.cpu_count()} cores, {platform.machine()}, "
                f"Python {platform.python_version()}, {args.rounds} rounds of {args.seconds:g} s, medians.",
            ]
        )
        print(report)
        if args.write:
            RESULTS.mkdir(exist_ok=True)
            (RESULTS / "produce-fetch.md").write_text("# Produce and fetch, interleaved\n\n" + report + "\n")
            plot(seen, brokers, RESULTS / "produce-fetch.png")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def plot(seen: Table, brokers: dict[str, str], path: Path) -> None:
    """Each row relative to the floor."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = list(seen)
    figure, axes = pyplot.subplots(figsize=(9, 0.5 * len(rows) + 1.5))
    others = [b for b in brokers if b != "floor"]
    for at, name in enumerate(others):
        ratios = [statistics.median(seen[r][name]) / statistics.median(seen[r]["floor"]) for r in rows]
        axes.barh([i + 0.35 * at for i in range(len(rows))], ratios, height=0.33, label=name)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [f"{row} ({unit})" for row, unit in rows])
    axes.invert_yaxis()
    axes.set_xlabel("relative to the floor (for ms, less is better)")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
