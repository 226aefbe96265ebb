"""Draws docs/img/top.svg and docs/img/dashboard.png from a real node under load, scraped by a real Prometheus.

    python -m scripts.observability_pictures --prometheus /usr/bin/prometheus

The first is the screen of `tidelog top`. The second shows the panels of the Grafana dashboard, drawn with matplotlib from
Prometheus's answers to the dashboard's expressions. The script fails if Prometheus refuses an expression, or if a panel that
the load should fill stays empty.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import re
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from scripts.dashboard_panels import ROWS, Panel
from service.cli.top.command import Nodes
from service.cli.top.screen import screen
from storage_tiers.clock import SystemClock
from tests.support.node import Node

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "img"
#: By topic: partitions, bytes per record, records per second.
LOAD = {"orders": (3, 600, 4000), "flights": (2, 1200, 1500), "clicks": (1, 200, 2000)}
SCRAPE_S, WINDOW_S = 2, 10
COLUMNS = 4
#: The panels that may stay empty, because a run need not contain what they show.
EMPTY = {
    "Errors answered",
    "Errors",
    "Slowed and refused by a full disk",
    "Flushes",
    "A flush takes",
    "Offloads and cold reads that failed",
    "Chunk cache hits",
}


@dataclass(frozen=True)
class Series:
    name: str
    times: list[float]
    values: list[float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prometheus", default="prometheus", help="the Prometheus program")
    parser.add_argument("--seconds", type=float, default=90, help="seconds of load")
    chosen = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as place,
        Node(Path(place) / "node") as node,
        prometheus(chosen.prometheus, Path(place), node.http) as address,
        load(node),
    ):
        began = time.time()
        time.sleep(chosen.seconds * 0.6)
        draw_top(node)
        time.sleep(max(0.0, began + chosen.seconds - time.time()))
        draw_dashboard(address, began, time.time())


# --- the run ----------------------------------------------------------------------------------------------------------
@contextmanager
def prometheus(program: str, place: Path, target: str) -> Iterator[str]:
    config = place / "prometheus.yml"
    config.write_text(
        f"global: {{scrape_interval: {SCRAPE_S}s}}\n"
        f"scrape_configs: [{{job_name: tidelog, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    with (place / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={config}",
                f"--storage.tsdb.path={place}/tsdb",
                "--web.listen-address=127.0.0.1:0",
            ],
            stdout=log,
            stderr=log,
        )
        try:
            yield _address(process, place / "prometheus.log")
        finally:
            process.terminate()
            process.wait(30)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Returns the address of Prometheus, which chooses a free port, once it listens there."""
    while process.poll() is None:
        for line in log.read_text().splitlines():
            if 'msg="Listening on"' in line and "address=127.0.0.1:" in line:
                return line.rpartition("address=")[2].strip()
        time.sleep(0.1)
    raise SystemExit(f"prometheus ended:\n{log.read_text()}")


@contextmanager
def load(node: Node) -> Iterator[None]:
    """Writes three topics. Reads one at its end, and another repeatedly from its start, which is in the bucket."""
    admin = AdminClient({"bootstrap.servers": node.kafka})
    configs = {"local.retention.ms": "2000", "segment.bytes": str(4 << 20)}
    topics = [NewTopic(name, partitions, 1, config=configs) for name, (partitions, _, _) in LOAD.items()]
    for made in admin.create_topics(topics).values():
        made.result()
    over = threading.Event()
    threads = [threading.Thread(target=_produce, args=(node, name, over)) for name in LOAD]
    threads += [
        threading.Thread(target=_consume, args=(node, *each, over)) for each in (("orders", -1), ("flights", 0))
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _produce(node: Node, topic: str, over: threading.Event) -> None:
    _, size, per_s = LOAD[topic]
    producer = Producer({"bootstrap.servers": node.kafka, "linger.ms": 5})
    key = 0
    while not over.wait(0.02):
        for _ in range(per_s // 50):
            producer.produce(topic, bytes(size), key=str(key))
            key += 1
        producer.poll(0)
    producer.flush(10)


def _consume(node: Node, topic: str, start: int, over: threading.Event) -> None:
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "pictures", "enable.auto.commit": False})
    while not over.is_set():
        consumer.assign([TopicPartition(topic, number, start) for number in range(LOAD[topic][0])])
        again = time.monotonic() + 8
        while time.monotonic() < again and not over.is_set():
            consumer.consume(500, 0.2)
    consumer.close()


# --- the pictures -----------------------------------------------------------------------------------------------------
def draw_top(node: Node) -> None:
    from rich.console import Console

    nodes = Nodes([node.http], SystemClock())
    nodes.look()
    time.sleep(WINDOW_S)
    console = Console(record=True, width=132, file=io.StringIO())
    console.print(screen(nodes.look(), title="tidelog top: 1 node, every 10 s", topics=10))
    nodes.close()
    # Removes the web fonts that rich would load, so that the reader's monospaced font is used.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title="tidelog top"), flags=re.DOTALL)
    (IMAGES / "top.svg").write_text(svg)


def draw_dashboard(address: str, start: float, end: float) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.style.use("dark_background")
    panels = [(title, panel) for title, row in ROWS.items() for panel in row if not panel.stat]
    lines = -(-len(panels) // COLUMNS)
    figure, axes = pyplot.subplots(lines, COLUMNS, figsize=(5.2 * COLUMNS, 2.3 * lines), squeeze=False)
    empty = []
    for place in axes.flat[len(panels) :]:
        place.axis("off")
    for place, (row, panel) in zip(axes.flat, panels, strict=False):
        found = [each for query in panel.queries for each in ask(address, query.expression, query.legend, start, end)]
        draw_panel(place, f"{row}: {panel.title}", panel, found, start)
        if not found and panel.title not in EMPTY:
            empty.append(panel.title)
    version = json.load(urllib.request.urlopen(f"http://{address}/api/v1/status/buildinfo"))["data"]["version"]
    figure.suptitle(
        "The panels of grafana/dashboards/tidelog.json, drawn with matplotlib (not a screenshot of Grafana) from the answers "
        f"of Prometheus {version}\nto their expressions: one node under load for {end - start:.0f} s",
        fontsize=12,
    )
    figure.tight_layout(rect=(0, 0, 1, 0.985))
    figure.savefig(IMAGES / "dashboard.png", dpi=75)
    if empty:
        raise SystemExit(f"these panels are empty: {empty}")


def ask(address: str, expression: str, legend: str, start: float, end: float) -> list[Series]:
    """The series of one expression over the run. Raises SystemExit if Prometheus refuses the expression."""
    text = expression.replace("$__rate_interval", f"{WINDOW_S}s").replace("$node", ".*")
    query = urllib.parse.urlencode({"query": text, "start": start, "end": end, "step": SCRAPE_S})
    try:
        with urllib.request.urlopen(f"http://{address}/api/v1/query_range?{query}") as answer:
            found = json.load(answer)["data"]["result"]
    except urllib.error.HTTPError as error:
        raise SystemExit(f"Prometheus refuses {text}: {error.read().decode()}") from None
    series = []
    for each in found:
        points = [(at, float(value)) for at, value in each["values"] if not math.isnan(float(value))]
        name = legend
        for label, value in each["metric"].items():
            name = name.replace("{{" + label + "}}", value)
        series.append(Series(name, [at for at, _ in points], [value for _, value in points]))
    return series


def draw_panel(place: Any, title: str, panel: Panel, found: list[Series], start: float) -> None:
    from matplotlib.ticker import MaxNLocator

    highest = max((value for series in found for value in series.values), default=0.0)
    scale, unit = scaled(highest, panel.unit)
    shown = [series for series in found if any(series.values)] or found[:1]
    for series in shown:
        xs, ys = [at - start for at in series.times], [value / scale for value in series.values]
        (line,) = place.plot(xs, ys, label=series.name, linewidth=1.1)
        place.fill_between(xs, ys, alpha=0.12, color=line.get_color())
    place.set_title(f"{title}, {unit}" if unit else title, fontsize=9, loc="left")
    place.set_ylim(0, max(highest / scale * 1.25, 1e-9) if highest else 1)
    place.yaxis.set_major_locator(MaxNLocator(4))
    place.grid(alpha=0.15)
    place.tick_params(labelsize=7)
    if shown:
        place.legend(fontsize=6, ncols=3, loc="upper left", framealpha=0.4)
    else:
        place.text(0.5, 0.5, "no data in this run", ha="center", transform=place.transAxes, fontsize=8)


def scaled(highest: float, unit: str) -> tuple[float, str]:
    """The divisor of values, and their unit after division."""
    if unit in ("bytes", "Bps"):
        step = max(0, min(3, int(math.log(highest, 1024)))) if highest >= 1 else 0
        return 1024.0**step, ("B", "KiB", "MiB", "GiB")[step] + ("/s" if unit == "Bps" else "")
    if unit == "percentunit":
        return 0.01, "%"
    return 1.0, {"ms": "ms", "s": "s", "reqps": "/s", "ops": "/s"}.get(unit, "")


if __name__ == "__main__":
    main()
