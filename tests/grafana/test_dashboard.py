"""The dashboard in grafana/ is generated from its table, asks only for served metrics, and is laid out without gaps."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from scripts.dashboard_panels import ROWS, Panel
from scripts.grafana_dashboard import PATH, WIDTH, text
from service.observability.metric import Metric, MetricKind
from service.observability.metrics import METRICS
from tests.grafana.promql import asked

ROOT = PATH.parents[1]
#: The labels that Prometheus adds to every sample.
OF_PROMETHEUS = {"instance", "job"}
SUFFIXES = {MetricKind.HISTOGRAM: ("_bucket", "_sum", "_count"), MetricKind.SUMMARY: ("_sum", "_count")}


def served() -> dict[str, tuple[Metric, set[str]]]:
    """Every series' name, its metric, and the labels that it has."""
    found = {}
    for metric in METRICS.values():
        for suffix in SUFFIXES.get(metric.kind, ("",)):
            bucket = {"le"} if suffix == "_bucket" else set()
            found[metric.name + suffix] = (metric, {*metric.labels, *bucket, *OF_PROMETHEUS})
    return found


def panels() -> Iterator[tuple[str, Panel]]:
    for row, members in ROWS.items():
        for panel in members:
            yield f"{row}: {panel.title}", panel


@pytest.fixture(scope="module")
def loaded() -> dict[str, Any]:
    dashboard: dict[str, Any] = json.loads(PATH.read_text())
    return dashboard


def test_the_file_is_generated_from_its_table() -> None:
    assert PATH.read_text() == text(), "run `python -m scripts.grafana_dashboard`"


@pytest.mark.parametrize(("where", "panel"), list(panels()), ids=lambda value: value if isinstance(value, str) else "")
def test_every_expression_uses_served_metrics(where: str, panel: Panel) -> None:
    known = served()
    for query in panel.queries:
        series = list(asked(query.expression))
        assert series, f"{where}: asks for nothing"
        for each in series:
            assert each.name in known, f"{where}: /metrics serves no {each.name}"
            _, labels = known[each.name]
            assert each.labels | each.grouped <= labels, f"{where}: {each.name} bears {labels}"
            assert "instance" in each.labels, f"{where}: not of the chosen nodes alone"
        shown = set(re.findall(r"\{\{(\w+)\}\}", query.legend))
        assert shown <= series[0].grouped, f"{where}: its legend names what is summed over"


@pytest.mark.parametrize(("where", "panel"), list(panels()), ids=lambda value: value if isinstance(value, str) else "")
def test_topics_are_not_counted_twice(where: str, panel: Panel) -> None:
    """An expression must match the label `topic` of a metric that is served by topic and as a sum."""
    for query in panel.queries:
        for each in asked(query.expression):
            if served()[each.name][0].sum_too:
                assert "topic" in each.labels, f"{where}: {each.name} with its sum"


def test_a_name_that_is_not_served_is_found() -> None:
    with pytest.raises(ValueError, match=r"'up'.*a series without matchers"):
        list(asked("sum(up)"))
    (each,) = asked('sum by (le) (rate(a_bucket{x="1,}", y=~"b"}[5m]))'.replace(",}", ","))
    assert each.name == "a_bucket" and set(each.labels) == {"x", "y"} and set(each.grouped) == {"le"}


def test_panels_of_a_row_are_side_by_side(loaded: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in loaded["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= WIDTH
        assert not cells & taken, panel["title"]
        taken |= cells
    numbers = [panel["id"] for panel in loaded["panels"]]
    assert len(set(numbers)) == len(numbers)
    assert [p["title"] for p in loaded["panels"] if p["type"] == "row"] == list(ROWS)


def test_provisioned_files_exist() -> None:
    source = (ROOT / "provisioning" / "datasources" / "tidelog.yaml").read_text()
    assert "type: prometheus" in source and "isDefault: true" in source
    assert "path: $DASHBOARDS" in (ROOT / "provisioning" / "dashboards" / "tidelog.yaml").read_text()
    page = (ROOT.parent / "docs" / "operations.md").read_text()
    for word in ("grafana/prometheus.yml", "DASHBOARDS=", "GF_PATHS_PROVISIONING="):
        assert word in page
