"""Writes grafana/dashboards/tidelog.json: rows of panels over the metrics of `service/observability/metrics.py`.

    python -m scripts.grafana_dashboard

To change the dashboard, edit the table in `dashboard_panels.py` and run this module. Tests check that the file is up to date,
and that a node serves every metric that an expression names.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scripts.dashboard_panels import ROWS, Panel

PATH = Path(__file__).resolve().parents[1] / "grafana" / "dashboards" / "tidelog.json"
#: The schema of Grafana 10 and newer. Older versions cannot read it.
SCHEMA_VERSION = 39
WIDTH, HEIGHT, STAT_HEIGHT = 24, 7, 4

SOURCE = {"type": "prometheus", "uid": "${datasource}"}


# --- Grafana's JSON ---------------------------------------------------------------------------------------------------
def dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        panels.append(_row(len(panels) + 1, title, y))
        x, y = 0, y + 1
        for place, panel in enumerate(row):
            if x + panel.width > WIDTH:
                x, y = 0, y + _height(row[place - 1])
            panels.append(_panel(len(panels) + 1, panel, x, y))
            x += panel.width
        y += _height(row[-1])
    return {
        "uid": "tidelog",
        "title": "tidelog",
        "tags": ["tidelog", "kafka"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "",
        "graphTooltip": 1,
        "templating": {"list": _variables()},
        "annotations": {"list": []},
        "links": [],
        "panels": panels,
    }


def _height(panel: Panel) -> int:
    return STAT_HEIGHT if panel.stat else HEIGHT


def _variables() -> list[dict[str, Any]]:
    return [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "hide": 0},
        {
            "name": "node",
            "label": "Node",
            "type": "query",
            "datasource": SOURCE,
            "query": {"query": "label_values(tidelog_node_info, instance)", "refId": "node"},
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "current": {"text": "All", "value": "$__all"},
        },
    ]


def _row(number: int, title: str, y: int) -> dict[str, Any]:
    place = {"x": 0, "y": y, "w": WIDTH, "h": 1}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _panel(number: int, panel: Panel, x: int, y: int) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + place), "datasource": SOURCE, "expr": query.expression, "legendFormat": query.legend}
        for place, query in enumerate(panel.queries)
    ]
    return {
        "id": number,
        "type": "stat" if panel.stat else "timeseries",
        "title": panel.title,
        "description": panel.help,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": _height(panel)},
        "targets": targets,
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _STAT_OPTIONS if panel.stat else _SERIES_OPTIONS,
    }


_STAT_OPTIONS = {
    "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    "graphMode": "area",
    "colorMode": "value",
    "textMode": "value",
}
_SERIES_OPTIONS = {
    "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
    "tooltip": {"mode": "multi", "sort": "desc"},
}


def _defaults(panel: Panel) -> dict[str, Any]:
    if panel.stat:
        return {"unit": panel.unit, "color": {"mode": "thresholds"}}
    stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
    custom = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 10, "showPoints": "never", "stacking": stacking}
    return {"unit": panel.unit, "min": 0, "color": {"mode": "palette-classic"}, "custom": custom}


def text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    PATH.write_text(text())
