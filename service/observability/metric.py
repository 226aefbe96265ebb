"""The definition of a metric, and the metric names of Kafka's MBeans. The names follow the Prometheus JMX exporter's rules for
Kafka."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class MetricKind(Enum):
    """Prometheus's types. A summary here has a sum and a count, but no quantiles."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Metric:
    """`labels` are all labels of a sample. `sum_too` adds the sum, a sample without labels. `mbean` is Kafka's name, empty for
    tidelog's own metrics."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    mbean: str = ""
    sum_too: bool = False


def of_bean(
    kind: MetricKind,
    domain: str,
    group: str,
    bean: str,
    help_text: str,
    labels: tuple[str, ...] = (),
    *,
    name: str = "",
) -> Metric:
    made = f"kafka_{domain}_{group}_{bean}".lower().replace(".", "_").replace("-", "_")
    return Metric(name or made, kind, help_text, labels, f"kafka.{domain}:type={group},name={bean}")


def own(kind: MetricKind, name: str, help_text: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(f"tidelog_{name}", kind, help_text, labels)
