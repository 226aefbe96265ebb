"""Writes metrics in Prometheus's text format 0.0.4, or in OpenMetrics 1.0 if the scraper prefers it.

prometheus_client is not used, because it creates an object per sample. With a thousand partitions, this would block the event
loop for tens of milliseconds, and it would cost an idle node memory. Tests parse the output with prometheus_client. Samples are
formatted when they are put, so that a scrape of many partitions takes short turns.
https://prometheus.io/docs/instrumenting/exposition_formats/ and https://prometheus.io/docs/specs/om/open_metrics_spec/
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence

from service.observability.metric import MetricKind
from service.observability.metrics import METRICS

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

#: The most characters of a label's value. A topic's name has at most 249.
LABEL_CHARS = 256
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def labels_of(**values: str | int) -> str:
    """`{name="value",...}`, or an empty string if there are no labels. Clients may choose values of up to 32 KiB. A value of
    more than LABEL_CHARS is truncated, and ends with a digest of the whole value."""
    if not values:
        return ""
    return "{" + ",".join(f'{name}="{_short(str(value)).translate(_ESCAPES)}"' for name, value in values.items()) + "}"


def _short(value: str) -> str:
    if len(value) <= LABEL_CHARS:
        return value
    digest = hashlib.sha256(value.encode()).hexdigest()[:16]
    return f"{value[: LABEL_CHARS - len(digest) - 1]}…{digest}"


def prefers_open_metrics(accept: str) -> bool:
    """Whether an Accept header prefers OpenMetrics to plain text. Prometheus sends both types with weights."""
    weights = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for offer in accept.split(","):
        kind, *parameters = (part.strip() for part in offer.split(";"))
        if kind in weights:
            weights[kind] = max(weights[kind], _weight(parameters))
    return weights["application/openmetrics-text"] > weights["text/plain"]


def _weight(parameters: Iterable[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def number(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value)


class Exposition:
    """The samples of one scrape. Raises KeyError for a metric that is not in METRICS."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {name: [] for name in METRICS}

    def put(self, name: str, value: float, labels: str = "") -> None:
        """Adds a sample of a counter or gauge. `labels` are from `labels_of`."""
        self._lines[name].append(f"{name}{labels} {number(value)}")

    def put_summary(self, name: str, count: int, total: float, labels: str = "") -> None:
        lines = self._lines[name]
        lines.append(f"{name}_count{labels} {count}")
        lines.append(f"{name}_sum{labels} {number(total)}")

    def put_histogram(
        self, name: str, bounds: Sequence[float], counts: Sequence[int], total: float, **labels: str
    ) -> None:
        """`counts` has one count per bucket, not cumulative. The last bucket is above all `bounds`."""
        lines = self._lines[name]
        below = 0
        for bound, count in zip((*bounds, math.inf), counts, strict=True):
            below += count
            lines.append(f"{name}_bucket{labels_of(**labels, le=number(float(bound)))} {below}")
        lines.append(f"{name}_count{labels_of(**labels)} {below}")
        lines.append(f"{name}_sum{labels_of(**labels)} {number(total)}")

    def families(self, *, open_metrics: bool = False) -> Iterator[bytes]:
        """The body, metric by metric. Metrics without a sample are omitted."""
        for name, lines in self._lines.items():
            if lines:
                metric = METRICS[name]
                family = name
                if open_metrics and metric.kind is MetricKind.COUNTER:
                    family = name.removesuffix("_total")
                head = f"# HELP {family} {metric.help}\n# TYPE {family} {metric.kind.value}\n"
                yield (head + "\n".join(lines) + "\n").encode()
        if open_metrics:
            yield b"# EOF\n"
