"""Writes the metrics' part of docs/operations.md from their table: `python -m service.observability.generate_docs`.

The rest of the page is written by hand; this part reaches from its heading to the next one of that rank.
"""

from __future__ import annotations

import re
from pathlib import Path

from service.observability.metrics import GROUPS, METRICS, Metric
from service.observability.unsupported_metrics import UNSUPPORTED

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
_PART = re.compile(r"^## Metrics\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)

_HEAD = """\
## Metrics

`GET /metrics` on the node's HTTP port (printed at the start, and in `endpoints.json`; `--http-listener` sets it) is what
Prometheus scrapes: text format, or OpenMetrics where `Accept` prefers it. The port takes 64 connections (fewer where
descriptors are few); one more takes the place of the oldest that no answer is being made for.

```yaml
scrape_configs:
  - job_name: tidelog
    static_configs: [{targets: ["127.0.0.1:9094"]}]
```

Kafka's MBeans have the names that the Prometheus JMX exporter's rules for Kafka give them, so dashboards and alerts made for
Kafka apply. Different are TotalTimeMs, a histogram and not quantiles of a sample (`histogram_quantile(0.99, sum by (request,
le) (rate(kafka_network_requestmetrics_totaltimems_bucket[5m])))`), and the other times, which have a sum and a count. Fetches
of consumers are `request="Fetch"`. Counters begin at 0 at each start. A metric with `topic` also has one sample without it, the
sum of all topics: ask for `topic=""` or `topic!=""`.

What is listed one by one is bounded: `tidelog.metrics.topics` (1,000) and `tidelog.metrics.partitions` (2,000), both changed
live; beyond them topics and partitions count in the sums only, and `tidelog_metrics_left_out` says how many they are. Other
labels have as many values as there are APIs, error codes and kinds of store requests. `promtool check metrics` objects to two
names, `delayedOperation` and `..._connection_count`: they are Kafka's.

A scrape looks at a few partitions a turn of the event loop. It starts no tier process, and waits at most a second for the one
that runs. Nothing is counted for each record; idle shares look back 30 s.

Rules for Prometheus stand in `packaging/prometheus/alerts.yaml`, each explained in
[production.md](production.md#what-each-alert-means). They watch
`tidelog_ready == 0`; `tidelog_store_reachable == 0`; `tidelog_store_cluster_behind > 0` and
`tidelog_partitions_store_behind > 0` (the bucket went backwards); `tidelog_tier_upload_lag_seconds_max` above a few times
`tidelog.tier.max.lag.ms`; `tidelog_disk_used_ratio` near `tidelog.disk.watermark.slow`;
`kafka_controller_kafkacontroller_offlinepartitionscount > 0`; a rise of
`kafka_server_brokertopicmetrics_remotecopyerrors_total`, of `tidelog_gateway_failures_total` or of
`tidelog_tier_process_lost_total`.
"""

_UNSUPPORTED = """\
### Not served

Of the metrics of Apache Kafka 4.2.1's brokers; those of group and transaction coordinators come with these.
"""


def render() -> str:
    """The part."""
    parts = [_HEAD, f"{len(METRICS)} metrics.\n"]
    for title, metrics in GROUPS:
        parts.append(f"### {title}\n")
        parts.append(_table(("metric", "type", "labels", "what it is"), [_row(metric) for metric in metrics]))
    parts.append(_UNSUPPORTED)
    parts.append(_table(("MBeans", "why"), [(_names(names), reason) for names, reason in UNSUPPORTED]))
    return "\n".join(parts) + "\n"


def renewed(page: str) -> str:
    """The page with this part as it is now."""
    return _PART.sub(lambda _: render(), page)


def _row(metric: Metric) -> tuple[str, ...]:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    if metric.sum_too:
        labels += ", or none"
    bean = f" (`{metric.mbean}`)" if metric.mbean else ""
    return f"`{metric.name}`", metric.kind.value, labels, metric.help + bean


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
