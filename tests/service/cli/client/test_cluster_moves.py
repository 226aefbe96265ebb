"""The commands that move partitions, with a cluster of plain values behind them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pytest

from service.cli.client import cluster_moves, move_throttle, move_wait
from service.cli.client.config_requests import ConfigChange
from service.cli.client.move_planner import Obstacle, PartitionKey, Placement, PlannedMove
from service.cli.client.move_requests import Placements
from service.cli.errors import CommandError
from tests.service.cli.support import Ran, tidelog


class Brokers:
    """A cluster whose moves end at once, except those of `slow` topics; `untiered` topics have an obstacle to a move,
    and moves of `refused` topics fail."""

    def __init__(self, live: Sequence[int], *rows: Placement) -> None:
        self.live = live
        self.rows = {each.key: each for each in rows}
        self.slow: set[str] = set()
        self.untiered: set[str] = set()
        self.refused: set[str] = set()
        self.asked: list[PlannedMove] = []

    def placements(self, address: str, topics: Collection[str] | None = None) -> Placements:
        return Placements(self.live, [each for each in self.rows.values() if topics is None or each.topic in topics])

    def with_obstacles(self, address: str, rows: Sequence[Placement]) -> list[Placement]:
        return [each._replace(obstacle=Obstacle.UNTIERED) if each.topic in self.untiered else each for each in rows]

    def reassign(self, address: str, moves: Sequence[PlannedMove]) -> Mapping[PartitionKey, str]:
        self.asked += moves
        for each in moves:
            if each.topic not in self.refused:
                target = each.target if each.topic in self.slow and each.target != each.source else None
                held = each.source if target is not None else each.target
                self.rows[each.key] = Placement(*each.key, held, target)
        return {each.key: "no such thing" for each in moves if each.topic in self.refused}

    def held(self) -> dict[PartitionKey, int]:
        return {key: each.broker for key, each in sorted(self.rows.items())}


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    rows = [Placement("a", number, number + 1) for number in range(3)] + [Placement("b", 0, 3), Placement("c", 0, 3)]
    made = Brokers((1, 2, 3), *rows)
    monkeypatch.setattr(cluster_moves, "require_reachable", lambda bootstrap: bootstrap)
    monkeypatch.setattr(move_wait, "require_reachable", lambda bootstrap: bootstrap)
    monkeypatch.setattr(move_wait, "placements", made.placements)
    monkeypatch.setattr(cluster_moves, "unknown_topic", lambda _, name: CommandError(f"no topic {name}"))
    for name in ("placements", "with_obstacles", "reassign"):
        monkeypatch.setattr(cluster_moves, name, getattr(made, name))
    return made


def run(*words: str) -> Ran:
    return tidelog("cluster", *words)


def test_without_execute_nothing_is_moved(brokers: Brokers) -> None:
    for words in (("move", "a:0,1", "--to", "3"), ("drain", "3"), ("rebalance",)):
        before = dict(brokers.rows)
        shown = run(*words)
        assert shown.code == 0 and brokers.rows == before and not brokers.asked
        assert "Nothing was changed. Run it again with --execute" in shown.out
        done = run(*words, "--execute")
        assert done.code == 0 and "Run it again" not in done.out
        assert brokers.asked
        brokers.asked.clear()


def test_move_prints_the_moves_and_what_became_of_them(brokers: Brokers) -> None:
    assert run("move", "a", "b:0", "--to", "3", "--execute").out.splitlines() == [
        "TOPIC  PARTITION  FROM  TO",
        "a              0     1   3",
        "a              1     2   3",
        "2 partitions moved",
    ]
    assert brokers.held() == {("a", 0): 3, ("a", 1): 3, ("a", 2): 3, ("b", 0): 3, ("c", 0): 3}
    assert run("move", "a", "--to", "3", "--execute").out == "nothing to do: the partitions are already on broker 3\n"


def test_moves_are_printed_as_json(brokers: Brokers) -> None:
    brokers.refused, brokers.untiered = {"b"}, {"c"}
    shown = run("move", "a:0", "b", "c", "--to", "2", "--execute", "--json")
    assert shown.code == 1
    assert shown.err == (
        "tidelog: b-0 refused: no such thing; c-0 cannot move, because partitions move through the bucket; set "
        "remote.storage.enable=true and remote.log.copy.disable=false for c (the brokers need a --store), or delete it\n"
    )
    row = {"topic": "a", "partition": 0, "from": 1, "to": 2, "state": "moved", "error": None}
    assert shown.json == {
        "executed": True,
        "moves": [row, row | {"topic": "b", "from": 3, "state": "refused", "error": "no such thing"}],
        "under_way": [],
        "staying": [{"topic": "c", "partition": 0, "broker": 3, "reason": "its topic is not tiered"}],
    }


def test_moves_in_progress_are_cancelled(brokers: Brokers) -> None:
    brokers.slow = {"a", "b"}
    assert run("move", "a:0", "b", "--to", "2", "--execute", "--no-wait").out.endswith("2 partitions started to move\n")
    assert run("move", "--cancel", "a", "--execute").out.splitlines()[-2:] == [
        "a              0     1  stays",
        "1 move cancelled",
    ]
    assert brokers.rows["b", 0].target == 2
    assert run("move", "--cancel", "--execute").code == 0
    assert brokers.rows["b", 0].target is None
    assert run("move", "--cancel", "--execute").out == "nothing to do: no move is in progress\n"


def test_a_wait_ends_with_its_timeout_and_names_what_is_left(brokers: Brokers) -> None:
    brokers.slow = {"b"}
    ran = run("drain", "3", "--execute", "--timeout", "0")
    assert ran.code == 1
    assert ran.err == (
        "tidelog: b-0 not moved within --timeout; the moves continue; `tidelog cluster move --cancel --execute` cancels the "
        "moves in progress\n"
    )
    assert "2 partitions moved" in ran.out and "stop broker" not in ran.out
    assert "1 partition already moving: b-0" in run("drain", "3").out


def test_ctrl_c_leaves_the_moves_and_says_so(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    brokers.slow = {"b"}
    monkeypatch.setattr(cluster_moves, "MoveWait", interrupted)
    ran = run("drain", "3", "--execute")
    assert (ran.code, ran.err) == (
        1,
        "tidelog: interrupted: moves that have begun continue; `tidelog cluster move --cancel --execute` cancels the moves in "
        "progress\n",
    )
    assert brokers.rows["b", 0].target is not None


def test_a_drained_broker_is_to_be_stopped(brokers: Brokers) -> None:
    ran = run("drain", "3", "--execute")
    assert ran.out.endswith("3 partitions moved\nstop broker 3 before new partitions are created there\n")
    assert 3 not in brokers.held().values()
    assert "nothing to do: broker 3 holds no partition" in run("drain", "3").out
    brokers.live = (1, 2)
    assert run("rebalance").out == "nothing to do: the partitions are spread evenly\n"


def test_a_broker_that_cannot_be_drained_is_named_with_the_reason(brokers: Brokers) -> None:
    brokers.live = (1, 2)
    assert run("drain", "3").err == (
        "tidelog: broker 3 is away, and its partitions can move only while it runs; start it, then drain it\n"
    )
    assert "there is no live broker 4" in run("drain", "4").err
    assert "there is no live broker 4" in run("move", "a", "--to", "4").err
    brokers.live = (3,)
    assert run("drain", "3").err == (
        "tidelog: broker 3 is the only live broker, so its partitions cannot move; start another broker first\n"
    )
    brokers.live = (1, 2, 3)
    assert run("drain", "3", "--execute").code == 0


def test_partitions_that_cannot_move_are_named(brokers: Brokers) -> None:
    brokers.untiered = {"b"}
    brokers.rows["c", 0] = Placement("c", 0, 3, obstacle=Obstacle.LEADERLESS)
    ran = run("drain", "3", "--execute")
    assert ran.code == 1
    assert "b-0 cannot move, because partitions move through the bucket" in ran.err
    assert "c-0 cannot move without a leader; start broker 3 first" in ran.err
    brokers.rows = {("b", number): Placement("b", number, 1) for number in range(3)}
    ran = run("rebalance")
    assert ran.code == 0 and ran.out == "nothing to do: no move would spread them more evenly\n"
    assert ran.err.startswith(
        "tidelog: the partitions cannot be spread more evenly: b-0, b-1, b-2 cannot move, because"
    )
    brokers.untiered = set()
    assert run("rebalance", "--execute").code == 0
    assert sorted(brokers.held().values()) == [1, 2, 3]


def test_arguments_that_name_nothing_are_refused(brokers: Brokers) -> None:
    assert "no topic d" in run("move", "d", "--to", "1").err
    assert "a has no partition 3, only 0 to 2" in run("move", "a:3", "--to", "1").err
    for words in (("move", "a"), ("move", "a", "--to", "1", "--cancel"), ("move", "--to", "1")):
        assert run(*words).code == 2
    assert "write TOPIC, or TOPIC:0,2" in run("move", "a:x", "--to", "1").err
    assert run("move", "a:0,2", "--to", "1").code == run("move", "a", "--to", "1").code == 0


# --- a throttle -------------------------------------------------------------------------------------------------------
@pytest.fixture
def configs(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], str]:
    """The configs that are set, by resource name and key."""
    found: dict[tuple[str, str], str] = {}

    def alter(address: str, kind: int, name: str, changes: Sequence[ConfigChange], *, validate_only: bool) -> None:
        for each in changes:
            if each.value is None:
                found.pop((name, each.name), None)
            else:
                found[name, each.name] = each.value

    monkeypatch.setattr(move_throttle, "alter_configs", alter)
    return found


THROTTLED = {
    ("", "leader.replication.throttled.rate"): "1000",
    ("a", "leader.replication.throttled.replicas"): "*",
    ("b", "leader.replication.throttled.replicas"): "*",
}
MOVE = ("move", "a", "b:0", "--to", "3", "--execute", "--throttle", "1000")


def test_a_throttle_holds_while_partitions_move_and_ends_with_them(
    brokers: Brokers, configs: dict[tuple[str, str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    configs["", "other"] = "x"
    seen: list[dict[tuple[str, str], str]] = []

    def reassign(address: str, moves: Sequence[PlannedMove]) -> Mapping[PartitionKey, str]:
        seen.append(dict(configs))
        return brokers.reassign(address, moves)

    monkeypatch.setattr(cluster_moves, "reassign", reassign)
    brokers.rows["b", 0] = Placement("b", 0, 1)
    assert run(*MOVE).code == 0
    assert seen == [{("", "other"): "x"} | THROTTLED]
    assert configs == {("", "other"): "x"}


def test_the_throttle_of_moves_that_continue_stays_and_is_named(
    brokers: Brokers, configs: dict[tuple[str, str], str]
) -> None:
    brokers.slow = {"a"}
    brokers.rows["b", 0] = Placement("b", 0, 1)
    late = run(*MOVE, "--timeout", "0")
    assert late.code == 1
    assert "the throttle stays; `tidelog configs alter --delete leader.replication.throttled.rate` ends it" in late.err
    assert configs == THROTTLED
    assert "the throttle stays" in run(*MOVE, "--timeout", "0").err
    brokers.rows = {key: Placement(*key, 3) for key in brokers.rows}
    brokers.rows["a", 0] = Placement("a", 0, 1)
    brokers.slow = set()
    assert run(*MOVE[:2], *MOVE[3:]).code == 0
    assert configs == {("b", "leader.replication.throttled.replicas"): "*"}


def test_without_execute_or_a_throttle_no_config_changes(brokers: Brokers, configs: dict[tuple[str, str], str]) -> None:
    assert run("move", "a", "--to", "3", "--throttle", "1000").code == 0
    assert run("move", "a", "--to", "3", "--execute").code == 0
    assert configs == {}


def test_a_throttle_is_named_if_the_moves_are_lost_sight_of_and_removed_if_it_cannot_be_set(
    brokers: Brokers, configs: dict[tuple[str, str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(address: str, moves: Sequence[PlannedMove]) -> Mapping[PartitionKey, str]:
        raise CommandError("no answer")

    monkeypatch.setattr(cluster_moves, "reassign", lost)
    ran = run("move", "a", "--to", "3", "--execute", "--throttle", "1000")
    assert ran.code == 1 and "the throttle stays" in ran.err and "no answer" in ran.err
    assert configs

    def refusing(address: str, kind: int, name: str, changes: Sequence[ConfigChange], *, validate_only: bool) -> None:
        if not name and changes[0].value is not None:
            raise CommandError("not now")
        configs.clear()

    monkeypatch.setattr(move_throttle, "alter_configs", refusing)
    ran = run("move", "a", "--to", "3", "--execute", "--throttle", "1000")
    assert (ran.code, configs) == (1, {}) and "the throttle stays" not in ran.err
