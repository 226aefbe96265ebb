"""`tidelog cluster move`, `drain` and `rebalance`: show moves of partitions between brokers, begin them, and wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import typer

from service.cli.client import move_planner
from service.cli.client.group_offsets import parse_scope
from service.cli.client.move_planner import MovePlan, Obstacle, PartitionKey, Placement, PlannedMove
from service.cli.client.move_requests import Placements, placements, reassign, with_obstacles
from service.cli.client.move_throttle import MoveThrottle
from service.cli.client.move_wait import MoveState, MoveWait, look_through, named, names, why_waiting
from service.cli.completion import complete_topic
from service.cli.errors import CommandError, report
from service.cli.kafka import DEFAULT_BOOTSTRAP, Bootstrap, Profile, unknown_topic
from service.cli.listener import require_reachable
from service.cli.output import AsJson, counted, print_json, print_table

CANCEL_ALL = "`tidelog cluster move --cancel --execute` cancels the moves in progress"

Execute = Annotated[bool, typer.Option("--execute", help="Begin the moves. Without it, only show them.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the partitions have moved.")]
Timeout = Annotated[
    float | None, typer.Option(min=0, help="The longest wait, in seconds. (default: no limit)", show_default=False)
]

Throttle = Annotated[
    int | None,
    typer.Option(
        metavar="BYTES_PER_S",
        min=1,
        help="The most bytes a second that a broker offloads for these moves. (default: no limit)",
        show_default=False,
    ),
]


class MoveOptions(NamedTuple):
    """The options that all these commands have."""

    bootstrap: str
    execute: bool
    wait: bool
    timeout: float | None
    throttle: int | None
    as_json: bool


def move(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC[:PARTITIONS]...", autocompletion=complete_topic)
    ] = None,
    to: Annotated[int | None, typer.Option("--to", metavar="BROKER", min=0, help="The broker to move to.")] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel moves in progress, of these partitions or of all.")
    ] = False,
    execute: Execute = False,
    wait: Wait = True,
    timeout: Timeout = None,
    throttle: Throttle = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    profile: Profile = None,
) -> None:
    """Move partitions to a broker, or cancel moves in progress. Changes nothing without --execute."""
    if cancel == (to is not None):
        raise typer.BadParameter("use --to BROKER, or --cancel", param_hint="move")
    if not words and not cancel:
        raise typer.BadParameter("write TOPIC, or TOPIC:0,2 for two of its partitions", param_hint="move")
    scopes = [parse_scope(word) for word in words or ()]
    address = require_reachable(bootstrap)
    found = placements(address, {topic for topic, _ in scopes} if scopes else None)
    chosen = _chosen(bootstrap, found, scopes) if scopes else found.rows
    if to is None:
        plan = move_planner.call_off(chosen)
    elif to not in found.brokers:
        raise CommandError(f"there is no live broker {to}; `tidelog cluster status` shows the live brokers")
    else:
        plan = move_planner.move_to(with_obstacles(address, chosen), to)
    nothing = "no move is in progress" if cancel else f"the partitions are already on broker {to}"
    _carry_out(address, plan, nothing, MoveOptions(bootstrap, execute, wait, timeout, throttle, as_json))


def drain(
    broker: Annotated[int, typer.Argument(metavar="BROKER", min=0)],
    execute: Execute = False,
    wait: Wait = True,
    timeout: Timeout = None,
    throttle: Throttle = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    profile: Profile = None,
) -> None:
    """Move all partitions of a broker to the other brokers, evenly. Changes nothing without --execute."""
    address = require_reachable(bootstrap)
    found = placements(address)
    if broker not in found.brokers:
        if any(each.broker == broker for each in found.rows):
            raise CommandError(
                f"broker {broker} is away, and its partitions can move only while it runs; start it, then drain it"
            )
        raise CommandError(f"there is no live broker {broker}; `tidelog cluster status` shows the live brokers")
    if len(found.brokers) == 1:
        raise CommandError(
            f"broker {broker} is the only live broker, so its partitions cannot move; start another broker first"
        )
    plan = move_planner.drain(with_obstacles(address, found.rows), broker, found.brokers)
    wanted = MoveOptions(bootstrap, execute, wait, timeout, throttle, as_json)
    _carry_out(address, plan, f"broker {broker} holds no partition", wanted)
    if execute and wait and not as_json:
        typer.echo(f"stop broker {broker} before new partitions are created there")


def rebalance(
    execute: Execute = False,
    wait: Wait = True,
    timeout: Timeout = None,
    throttle: Throttle = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    profile: Profile = None,
) -> None:
    """Spread each topic, and all partitions, evenly over the live brokers. Changes nothing without --execute."""
    address = require_reachable(bootstrap)
    found = placements(address)
    plan = move_planner.rebalance(with_obstacles(address, found.rows), found.brokers)
    if plan.staying:
        report(f"the partitions cannot be spread more evenly: {_why_staying(plan.staying)}")
    nothing = "the partitions are spread evenly" if not plan.staying else "no move would spread them more evenly"
    _carry_out(
        address, plan._replace(staying=()), nothing, MoveOptions(bootstrap, execute, wait, timeout, throttle, as_json)
    )


def _chosen(
    bootstrap: str, found: Placements, scopes: Sequence[tuple[str, Sequence[int] | None]]
) -> Sequence[Placement]:
    """The placements of the named partitions, without duplicates. Raises CommandError if a partition does not exist."""
    known: dict[str, dict[int, Placement]] = {}
    for each in found.rows:
        known.setdefault(each.topic, {})[each.partition] = each
    chosen: dict[PartitionKey, Placement] = {}
    for topic, numbers in scopes:
        if topic not in known:
            raise unknown_topic(bootstrap, topic)
        for number in known[topic] if numbers is None else numbers:
            if number not in known[topic]:
                raise CommandError(f"{topic} has no partition {number}, only 0 to {max(known[topic])}")
            chosen[topic, number] = known[topic][number]
    return list(chosen.values())


# --- carrying out -----------------------------------------------------------------------------------------------------
def _carry_out(address: str, plan: MovePlan, nothing: str, wanted: MoveOptions) -> None:
    """Shows the plan and, with `execute`, carries it out. `nothing` says why there is nothing to move. Raises CommandError if a
    partition does not move as planned."""
    if not wanted.as_json:
        _print_plan(plan, nothing, execute=wanted.execute)
    refused: Mapping[PartitionKey, str] = {}
    states: dict[PlannedMove, str] = dict.fromkeys(plan.moves, "planned")
    if wanted.execute:
        throttle = MoveThrottle(address, [*plan.moves, *plan.under_way], wanted.throttle)
        try:
            throttle.begin()
            refused = reassign(address, plan.moves)
            states = {each: "refused" if each.key in refused else "begun" for each in plan.moves}
            begun = [each for each in plan.moves if each.key not in refused]
            if wanted.wait:
                states |= _await([*begun, *plan.under_way], wanted)
        except KeyboardInterrupt:
            stays = "; ".join(("interrupted: moves that have begun continue", CANCEL_ALL, *throttle.remains()))
            raise CommandError(stays) from None
        except CommandError:
            for sentence in throttle.remains():
                report(sentence)
            raise
        if not {"begun", MoveState.MOVING.value}.isdisjoint(states.values()):
            for sentence in throttle.remains():
                report(sentence)
        else:
            throttle.end()
    if wanted.as_json:
        print_json(_as_json(plan, states, refused, execute=wanted.execute))
    elif wanted.execute and states:
        _print_outcome(states)
    failures = _failures(plan, states, refused)
    if failures:
        raise CommandError("; ".join(failures))


def _await(moves: Sequence[PlannedMove], wanted: MoveOptions) -> dict[PlannedMove, str]:
    def why(left: Sequence[PlannedMove]) -> str:
        return why_waiting(wanted.bootstrap, left)

    found = MoveWait(moves, look_through(wanted.bootstrap), why).run(wanted.timeout)
    return {each: state.value for each, state in found.items()}


def _print_plan(plan: MovePlan, nothing: str, *, execute: bool) -> None:
    if plan.under_way:
        typer.echo(f"{counted(len(plan.under_way), 'partition')} already moving: {named(plan.under_way)}")
    if not plan.moves:
        if not plan.staying and not plan.under_way:
            typer.echo(f"nothing to do: {nothing}")
        return
    rows = [(*each.key, each.source, "stays" if each.target == each.source else each.target) for each in plan.moves]
    print_table(("TOPIC", "PARTITION", "FROM", "TO"), rows)
    if not execute:
        typer.echo(
            f"Nothing was changed. Run it again with --execute to do this for {counted(len(plan.moves), 'partition')}."
        )


def _print_outcome(states: Mapping[PlannedMove, str]) -> None:
    cancelled = sum(each.source == each.target and state in ("begun", "moved") for each, state in states.items())
    for state, text in (("begun", "started to move"), ("moved", "moved")):
        count = sum(each.source != each.target and found == state for each, found in states.items())
        if count:
            typer.echo(f"{counted(count, 'partition')} {text}")
    if cancelled:
        typer.echo(f"{counted(cancelled, 'move')} cancelled")


def _as_json(
    plan: MovePlan, states: Mapping[PlannedMove, str], refused: Mapping[PartitionKey, str], *, execute: bool
) -> Mapping[str, Any]:
    def row(each: PlannedMove, state: str) -> Mapping[str, Any]:
        found = {"topic": each.topic, "partition": each.partition, "from": each.source, "to": each.target}
        return found | {"state": state, "error": refused.get(each.key)}

    return {
        "executed": execute,
        "moves": [row(each, states[each]) for each in plan.moves],
        "under_way": [row(each, states.get(each, MoveState.MOVING.value)) for each in plan.under_way],
        "staying": [
            {
                "topic": each.topic,
                "partition": each.partition,
                "broker": each.broker,
                "reason": each.obstacle and each.obstacle.value,
            }
            for each in plan.staying
        ],
    }


# --- failures ---------------------------------------------------------------------------------------------------------
def _failures(plan: MovePlan, states: Mapping[PlannedMove, str], refused: Mapping[PartitionKey, str]) -> list[str]:
    found = [
        f"{names([key for key, each in refused.items() if each == reason])} refused: {reason}"
        for reason in dict.fromkeys(refused.values())
    ]
    if plan.staying:
        found.append(_why_staying(plan.staying))
    if ended := [each for each, state in states.items() if state == MoveState.CANCELLED.value]:
        found.append(f"{named(ended)} did not move: another command has cancelled or changed the move")
    if left := [each for each, state in states.items() if state == MoveState.MOVING.value]:
        found.append(f"{named(left)} not moved within --timeout; the moves continue; {CANCEL_ALL}")
    return found


def _why_staying(staying: Sequence[Placement]) -> str:
    found = []
    if untiered := [each for each in staying if each.obstacle is Obstacle.UNTIERED]:
        topics = ", ".join(dict.fromkeys(each.topic for each in untiered))
        found.append(
            f"{names([each.key for each in untiered])} cannot move, because partitions move through the bucket; "
            f"set remote.storage.enable=true and remote.log.copy.disable=false for {topics} (the brokers need a --store), "
            "or delete it"
        )
    if leaderless := [each for each in staying if each.obstacle is Obstacle.LEADERLESS]:
        brokers = ", ".join(map(str, sorted({each.broker for each in leaderless})))
        found.append(
            f"{names([each.key for each in leaderless])} cannot move without a leader; start broker {brokers} first; "
            "`tidelog cluster status` says whether it runs without the disk of its partitions"
        )
    return "; ".join(found)
