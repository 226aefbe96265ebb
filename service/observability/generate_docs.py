"""Writes the part about metrics in docs/operations.md from the table of metrics: `python -m
service.observability.generate_docs`.

The rest of the page is written by hand. This part extends from its heading to the next heading of the same level.
"""

from __future__ import annotations

import re
from pathlib import Path

from service.observability.metric import Metric
from service.observability.metrics import GROUPS, METRICS
from service.observability.unsupported_metrics import UNSUPPORTED

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
_PART = re.compile(r"^## Metrics\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)

_HEAD = """\
## Metrics

Prometheus scrapes `GET /metrics` on the node's HTTP port, in text format, or in OpenMetrics if `Accept` prefers it. The node
prints the port at the start and writes it to `endpoints.json`; `--http-listener` sets it. The port accepts 64 connections,
fewer if file descriptors are scarce. A further connection replaces the oldest idle one.

```yaml
scrape_configs:
  - job_name: tidelog
    static_configs: [{targets: ["127.0.0.1:9094"]}]
```

Metrics of Kafka's MBeans have the names that the Prometheus JMX exporter's rules for Kafka give them, so Kafka's dashboards and
alerts apply. TotalTimeMs differs: it is a histogram, not quantiles of a sample (`histogram_quantile(0.99, sum by (request,
le) (rate(kafka_network_requestmetrics_totaltimems_bucket[5m])))`). The other times have only a sum and a count. Consumer
fetches are `request="Fetch"`. Counters begin at 0 at each start. A metric with the label `topic` also has one sample without
it, the sum of all topics: select with `topic=""` or `topic!=""`.

`tidelog.metrics.topics` (1,000), `tidelog.metrics.partitions` (2,000) and `tidelog.metrics.groups` (500), all dynamic, bound
the topics, partitions and consumer groups listed one by one. A scrape compares at most 20,000 committed offsets with the ends
of their logs. Topics, partitions and groups beyond these bounds count only in the sums and in
`tidelog_metrics_left_out`. The values of other labels are bounded by the numbers of APIs, error codes and kinds of store
requests. `promtool check metrics` objects to two of Kafka's names, `delayedOperation` and `..._connection_count`.

A scrape visits a few partitions per iteration of the event loop. It starts no tier process, and waits at most a second for a
running one. No metric costs work per record. Idle shares cover the last 30 s.

`packaging/prometheus/alerts.yaml` has alert rules for Prometheus, each explained in
[production.md](production.md#what-each-alert-means). Among others they watch
`tidelog_ready == 0`; `tidelog_store_reachable == 0`; `tidelog_store_cluster_behind > 0` and
`tidelog_partitions_store_behind > 0` (the bucket went backwards); `tidelog_tier_offload_lag_seconds_max` above a few times
`tidelog.tier.max.lag.ms`; `tidelog_disk_used_ratio` near `tidelog.disk.watermark.slow`;
`kafka_controller_kafkacontroller_offlinepartitionscount > 0`; `tidelog_coordinators_unreadable > 0`;
`kafka_log_logcleanermanager_uncleanable_partitions_count > 0`; `tidelog_tier_offload_held_back_partitions > 0`; a rise of
`kafka_server_brokertopicmetrics_remotecopyerrors_total`, of `tidelog_gateway_failures_total` or of
`tidelog_tier_process_lost_total`.
"""

_UNSUPPORTED = """\
### Not served

These metrics of Apache Kafka 4.2.1's brokers are not served.
"""


def render() -> str:
    """Returns the text of the page's part about metrics."""
    parts = [_HEAD, f"{len(METRICS)} metrics.\n"]
    for title, metrics in GROUPS:
        parts.append(f"### {title}\n")
        parts.append(_table(("metric", "type", "labels", "what it is"), [_row(metric) for metric in metrics]))
    parts.append(_UNSUPPORTED)
    parts.append(_table(("MBeans", "why"), [(_names(names), reason) for names, reason in UNSUPPORTED]))
    return "\n".join(parts) + "\n"


def renewed(page: str) -> str:
    """The page with the current text of this part."""
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
