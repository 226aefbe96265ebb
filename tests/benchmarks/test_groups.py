"""The load of consumer groups: every row gives a figure, and an error never counts as a figure."""

from __future__ import annotations

from pathlib import Path

import pytest
from kio.schema.heartbeat.v3.response import HeartbeatResponse

from benchmarks import groups, load
from benchmarks.table import WANTED
from tests.support.node import Node


def test_every_row_gives_a_figure_and_has_a_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {name for name in WANTED if name.startswith(("offset commits", "heartbeats", "join to stable"))}
    monkeypatch.setattr(groups, "MEMBERS", (3, 5))
    with Node(tmp_path, settings=groups.SETTINGS) as node:
        rows = list(groups.one_round(node.kafka, "t", 0.05, ""))
    assert all(value for _, _, value in rows)
    measured = {name for name, _, _ in rows}
    assert measured - names == {"join to stable, 5 members"}
    names -= {name for name in names if "default delay" in name}  # measured in the part `coordinators`
    assert names - measured == {"join to stable, 100 members", "join to stable, 500 members"}


def test_a_member_that_is_gone_gives_no_figure(tmp_path: Path) -> None:
    with Node(tmp_path, settings=groups.SETTINGS) as node:
        member = groups.Member(node.kafka, "g")
        groups.wait_for_coordinator(member.connection, "g")
        groups.until_stable([member])
        assert member.assigned == 1
        groups.leave(member.connection, "g", [member])
        with pytest.raises(load.LoadFailed, match="HeartbeatResponse: errors \\[25\\]"):
            groups.closed_loop([member], [load.frame(member.beat())], HeartbeatResponse, 0.05)
        member.connection.close()
