"""The reference page names every metric, and the node serves each of Kafka's metrics or names a reason why not."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

from service.observability.generate_docs import PAGE, renewed
from service.observability.metrics import METRICS
from service.observability.unsupported_metrics import UNSUPPORTED

#: Recorded over JMX from a broker of that version, by type and name; includes those it has only with remote storage on,
#: and two that dashboards still query.
KAFKA = (Path(__file__).parent / "kafka-4.2.1-mbeans.txt").read_text().split()


def is_unsupported(mbean: str) -> bool:
    return any(fnmatchcase(mbean, pattern) for patterns, _ in UNSUPPORTED for pattern in patterns)


def test_the_page_is_current() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == renewed(page), "the metrics have changed: run `make docs`"
    assert page.count("\n## Metrics\n") == 1
    for name in METRICS:
        assert f"| `{name}` |" in page


def test_every_metric_of_kafka_is_served_or_left_out() -> None:
    served = {metric.mbean for metric in METRICS.values()}
    without_attribute = {mbean.partition(",")[0] for mbean in served if "-metrics," in mbean}
    missing = [mbean for mbean in KAFKA if mbean not in served | without_attribute and not is_unsupported(mbean)]
    assert not missing
    assert not [mbean for mbean in served if is_unsupported(mbean)]


def test_every_metric_listed_as_unsupported_is_one_of_kafkas() -> None:
    for patterns, reason in UNSUPPORTED:
        assert reason.endswith(".")
        for pattern in patterns:
            assert any(fnmatchcase(mbean, pattern) for mbean in KAFKA), pattern


def test_served_metrics_have_kafkas_names() -> None:
    kinds = set(KAFKA)
    for metric in METRICS.values():
        if metric.mbean:
            assert metric.mbean in kinds or ("-metrics," in metric.mbean and metric.mbean.partition(",")[0] in kinds)
