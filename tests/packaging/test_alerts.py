"""The alert rules: Prometheus can load them, each fires only for its own condition, uses series that `/metrics` serves, and
is described in docs/production.md."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.grafana.promql import asked
from tests.grafana.test_dashboard import served
from tests.support.node import ROOT
from tests.support.promtool import promtool

RULES = ROOT / "packaging" / "prometheus" / "alerts.yaml"
PAGE = ROOT / "docs" / "production.md"
ALERTS: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
NAMES = [alert["alert"] for alert in ALERTS]

HEALTHY, SICK = 'job="tidelog",instance="healthy"', 'job="tidelog",instance="sick"'
#: By alert: its series, healthy values by the minute, and values that make the alert fire within half an hour.
LIVES = {
    "TidelogDown": ("up{}", "1x40", "0x40"),
    "TidelogNotReady": ("tidelog_ready{}", "1x40", "0x40"),
    "TidelogBrokerDown": ("tidelog_broker_up{}", "1x40", "0x40"),
    "TidelogStoreUnreachable": ("tidelog_store_reachable{}", "1x40", "0x40"),
    "TidelogStoreWentBackwards": ("tidelog_store_cluster_behind{}", "0x40", "1x40"),
    "TidelogPartitionsBehind": ("tidelog_partitions_store_behind{}", "0x40", "1x40"),
    "TidelogPartitionsRecovering": ("tidelog_recovering_partitions{}", "5x10 0x30", "3x40"),
    "TidelogPartitionsOffline": ("kafka_controller_kafkacontroller_offlinepartitionscount{}", "0x40", "1x40"),
    "TidelogDiskRefusesWrites": ("kafka_log_logmanager_offlinelogdirectorycount{}", "0x40", "1x40"),
    "TidelogOffloadsLate": ("tidelog_tier_offload_lag_seconds_max{}", "4000x40", "14400x40"),
    "TidelogOffloadsFail": (
        'kafka_server_brokertopicmetrics_remotecopyerrors_total{topic=""}',
        "7x40",
        "0+1x40",
    ),
    "TidelogOffloadsHeldBack": ("tidelog_tier_offload_held_back_partitions{}", "1x15 0x25", "2x40"),
    "TidelogCoordinatorsUnreadable": ("tidelog_coordinators_unreadable{}", "0x40", "1x40"),
    "TidelogLogsUncleanable": ("kafka_log_logcleanermanager_uncleanable_partitions_count{}", "1x10 0x30", "1x40"),
    "TidelogDiskFills": ("tidelog_disk_used_ratio{}", "0.8x40", "0.87x40"),
    "TidelogProduceRefused": ("tidelog_produce_refused_total{}", "9x40", "0+5x40"),
    "TidelogTierProcessLost": ("tidelog_tier_process_lost_total{}", "0x5 1x35", "0+1x40"),
    "TidelogEventLoopFull": ("tidelog_gateway_busy_seconds_total{}", "0+30x40", "0+58x40"),
    "TidelogBrokerFenced": ("kafka_controller_kafkacontroller_fencedbrokercount{}", "0x5 1x5 0x30", "1x40"),
    "TidelogMovesWait": ("kafka_server_replicamanager_reassigningpartitions{}", "3x10 0x30", "1x40"),
    "TidelogDescriptorsShort": ("tidelog_descriptor_shortages_total{}", "4x40", "0+1x40"),
    "TidelogClockStepped": ("tidelog_clock_step_seconds{}", "0x40", "-7200x40"),
    "TidelogDefect": ("tidelog_gateway_failures_total{}", "2x40", "0+1x40"),
}


def run(*words: str | Path) -> None:
    done = subprocess.run([promtool(), *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_reads_them() -> None:
    run("check", "rules", RULES)


def test_every_alert_has_a_scenario_in_this_test() -> None:
    assert set(LIVES) == set(NAMES)
    assert len(NAMES) == len(set(NAMES)) > 10


def test_each_alert_fires_for_the_sick_node_alone(tmp_path: Path) -> None:
    tests = []
    for alert in ALERTS:
        series, healthy, sick = LIVES[alert["alert"]]
        fired = {
            "exp_labels": {**dict(re.findall(r'(\w+)="([^"]*)"', SICK)), "severity": alert["labels"]["severity"]},
        }
        tests.append(
            {
                "interval": "1m",
                "input_series": [
                    {"series": series.replace("{", f"{{{labels},").replace(",}", "}"), "values": values}
                    for labels, values in ((HEALTHY, healthy), (SICK, sick))
                ],
                "alert_rule_test": [
                    {"eval_time": "0m", "alertname": alert["alert"], "exp_alerts": []},
                    {"eval_time": "35m", "alertname": alert["alert"], "exp_alerts": [fired]},
                ],
            }
        )
    # Annotations are dropped because their texts contain values; the test compares only which node an alert names.
    plain = {"groups": [{"name": "g", "rules": [{k: v for k, v in a.items() if k != "annotations"} for a in ALERTS]}]}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(plain))
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": tests}))
    run("test", "rules", tmp_path / "tests.yaml")


@pytest.mark.parametrize("alert", ALERTS, ids=NAMES)
def test_each_alert_uses_served_metrics_and_is_in_the_page(alert: dict[str, Any]) -> None:
    known = served()
    for name in set(re.findall(r"\b[a-z]\w*_\w+", alert["expr"])):
        assert name in known, name
    for each in asked(re.sub(r"\b(abs|increase)\b", "rate", re.sub(r"[<>=]+ [\d.]+$", "", with_braces(alert["expr"])))):
        assert each.name == "up" or each.labels <= known[each.name][1]
    assert alert["annotations"]["runbook"] == f"docs/production.md#{alert['alert'].lower()}"
    assert f"\n### {alert['alert']}\n" in PAGE.read_text()
    assert alert["labels"]["severity"] in ("warning", "critical")


def with_braces(expression: str) -> str:
    """The expression with braces after every series, including those without labels."""
    return re.sub(r"\b([a-z]\w*_\w+)(?!\w|\{)", r"\1{}", expression)
