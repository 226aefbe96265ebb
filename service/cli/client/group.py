"""`tidelog group`: manages consumer groups through Kafka's admin protocol, and shows how much of their lag is in the bucket."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from service.cli.client import group_offsets
from service.cli.client.positions import SYNTAX
from service.cli.completion import complete_group
from service.cli.errors import CommandError
from service.cli.kafka import DEFAULT_BOOTSTRAP, REQUEST_TIMEOUT_S, Bootstrap, Profile, connect_admin, explain, outcome
from service.cli.output import AsJson, counted, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

    from confluent_kafka import ConsumerGroupState
    from confluent_kafka.admin import AdminClient

T = TypeVar("T")

group = typer.Typer(no_args_is_help=True, help="List, inspect and delete consumer groups, and move their offsets.")

Name = Annotated[str, typer.Argument(metavar="GROUP", autocompletion=complete_group)]
Scope = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", "-t", metavar="TOPIC[:PARTITIONS]", help="All partitions of a topic, or these (0,2); repeatable."
    ),
]
AllTopics = Annotated[bool, typer.Option("--all-topics", help="All partitions with a committed offset of the group.")]


@group.command("list")
def list_(
    state: Annotated[
        list[str] | None, typer.Option("--state", metavar="STATE", help="Filter by state, such as Empty; repeatable.")
    ] = None,
    type_: Annotated[
        list[str] | None, typer.Option("--type", metavar="TYPE", help="Filter by type; repeatable.")
    ] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    profile: Profile = None,
) -> None:
    """List all consumer groups with their type and state. The groups of Kafka Connect's workers are not among them."""
    from confluent_kafka import ConsumerGroupType

    states = _named(state, {_state_name(each): each for each in _states()}, "--state")
    types = _named(type_, {each.name.capitalize(): each for each in ConsumerGroupType if each.value}, "--type")
    admin = connect_admin(bootstrap)
    asked = admin.list_consumer_groups(request_timeout=REQUEST_TIMEOUT_S, states=states, types=types)
    listed = outcome(bootstrap, asked, "cannot list groups")
    if listed.errors:
        raise explain(bootstrap, listed.errors[0].args[0], "cannot list all groups")
    rows = sorted((each.group_id, each.type.name.capitalize(), _state(each)) for each in listed.valid)
    if as_json:
        print_json([{"group": name, "type": kind, "state": now} for name, kind, now in rows])
    else:
        print_table(("GROUP", "TYPE", "STATE"), rows)


@group.command()
def describe(
    name: Name, as_json: AsJson = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, profile: Profile = None
) -> None:
    """Show a group's members, its lag in each partition, and the part of the lag that is in the bucket."""
    admin = connect_admin(bootstrap)
    found = _described(bootstrap, admin, name)
    owners = {
        (assigned.topic, assigned.partition): member
        for member in found.members
        for assigned in member.assignment.topic_partitions
    }
    lags = group_offsets.lags(bootstrap, admin, name, owners)
    if as_json:
        print_json(_as_json(name, found, lags))
        return
    members = counted(len(found.members), "member")
    assignor = f", {found.partition_assignor}" if found.partition_assignor else ""
    typer.echo(f"{name}  {_state(found)}  {members}{assignor}")
    if not found.members and not lags:
        typer.echo("the group has committed no offsets")
        return
    shown = _shown_members(found.members)
    rows = [
        (lag.topic, lag.partition, lag.offset, lag.end, lag.lag, lag.in_bucket)
        + (shown[owners[lag.key].member_id] if lag.key in owners else (None, None))
        for lag in lags
    ]
    idle = [shown[member.member_id] for member in found.members if not member.assignment.topic_partitions]
    nothing = (None,) * 6
    print_table(
        ("TOPIC", "PARTITION", "OFFSET", "END", "LAG", "IN BUCKET", "MEMBER", "HOST"),
        [*rows, *(nothing + each for each in idle)],
    )


@group.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="GROUP...", autocompletion=complete_group)],
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    profile: Profile = None,
) -> None:
    """Delete groups that have no members, and their offsets. A group that cannot be deleted stops no other."""
    admin = connect_admin(bootstrap)  # its futures are never done once it is gone
    futures = admin.delete_consumer_groups(names, request_timeout=REQUEST_TIMEOUT_S)
    failures = []
    for name, future in futures.items():
        try:
            _deleted(bootstrap, name, future)
        except CommandError as error:
            failures.append(error)
        else:
            if not as_json:
                typer.echo(f"deleted group {name}")
    if failures:
        raise type(failures[0])("; ".join(map(str, failures)))
    if as_json:
        print_json({"deleted": list(futures)})


def _deleted(bootstrap: str, name: str, future: Future[Any]) -> None:
    """Returns once the group is deleted. Raises CommandError if it has members, does not exist or cannot be deleted."""
    from confluent_kafka import KafkaException

    failure = future.exception()
    code = failure.args[0].name() if isinstance(failure, KafkaException) else None
    if code == "NON_EMPTY_GROUP":
        raise CommandError(f"group {name} has members; {group_offsets.STOP_MEMBERS}")
    if code == "GROUP_ID_NOT_FOUND":
        raise group_offsets.unknown(name)
    outcome(bootstrap, future, f"cannot delete group {name}")


@group.command("delete-offsets")
def delete_offsets(
    name: Name,
    topic: Annotated[
        list[str],
        typer.Option("--topic", "-t", metavar="TOPIC[:PARTITIONS]", help="The topic, or partitions of it; repeatable."),
    ],
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    profile: Profile = None,
) -> None:
    """Delete a group's offsets for topics to which no member is subscribed."""
    admin = connect_admin(bootstrap)
    deleted = group_offsets.delete(bootstrap, admin, name, topic)
    if as_json:
        print_json([{"topic": key[0], "partition": key[1]} for key in deleted])
    else:
        typer.echo(f"deleted the offsets of {counted(len(deleted), 'partition')}")


@group.command("reset-offsets")
def reset_offsets(
    name: Name,
    topic: Scope = None,
    all_topics: AllTopics = False,
    to: Annotated[str | None, typer.Option("--to", metavar=SYNTAX, help="The position to continue from.")] = None,
    shift_by: Annotated[
        int | None,
        typer.Option(
            "--shift-by", metavar="N", help="Move by N records from the committed offset, back if N is negative."
        ),
    ] = None,
    to_current: Annotated[
        bool, typer.Option("--to-current", help="Keep the committed offset. Partitions without one move to the end.")
    ] = False,
    from_file: Annotated[
        typer.FileText | None,
        typer.Option(
            "--from-file",
            metavar="CSV",
            help="Lines of TOPIC,PARTITION,OFFSET or GROUP,TOPIC,PARTITION,OFFSET. - reads standard input.",
        ),
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Commit the offsets. Without it, only show them.")] = False,
    export: Annotated[bool, typer.Option("--export", help="Print lines for --from-file.")] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    profile: Profile = None,
) -> None:
    """Move a group's offsets. The group must have no members. Changes nothing without --execute."""
    ways = [to is not None, shift_by is not None, to_current, from_file is not None]
    if sum(ways) != 1:
        raise typer.BadParameter("name one of --to, --shift-by, --to-current and --from-file")
    if from_file is None and all_topics == bool(topic):
        raise typer.BadParameter("name the partitions: either --topic or --all-topics")
    if from_file is not None and (all_topics or topic):
        raise typer.BadParameter("--from-file names the partitions; leave --topic and --all-topics out")
    admin = connect_admin(bootstrap)
    if from_file is not None:
        wanted = group_offsets.parse_csv(from_file, name)
        moves = group_offsets.moves_to(bootstrap, admin, name, list(wanted), wanted)
    else:
        keys = group_offsets.scope(bootstrap, admin, name, topic)
        moves = group_offsets.moves(bootstrap, admin, name, keys, to=to, shift_by=shift_by)
    before = group_offsets.described(bootstrap, admin, name)
    if execute:
        group_offsets.commit(bootstrap, admin, name, moves)
    if as_json:
        print_json([move._asdict() | {"committed": execute} for move in moves])
    elif export:
        for move in moves:
            typer.echo(f"{move.topic},{move.partition},{move.offset}")
    else:
        print_table(("TOPIC", "PARTITION", "OFFSET NOW", "NEW OFFSET"), moves)
        if moves:
            _print_result(name, before, execute=execute)


def _print_result(name: str, before: Any, *, execute: bool) -> None:
    """`before` describes the group before the move."""
    is_new = _state(before) == "Dead"
    if execute:
        typer.echo(f"Committed to group {name}{', which did not exist before' if is_new else ''}.")
        return
    typer.echo("Nothing was changed. Run it again with --execute to commit these offsets.")
    if is_new:
        typer.echo(f"There is no group {name}: --execute creates it. `tidelog group list` shows all.")
    if before.members:
        typer.echo(f"The group has members, which commit offsets of their own; {group_offsets.STOP_MEMBERS}.")


def _shown_members(members: Sequence[Any]) -> dict[str, tuple[str, str]]:
    """Returns name and host of each member, by member id. The name is the client id, which is short, or the member id if
    another member has the same client id, as all members of librdkafka have by default."""
    count = Counter(member.client_id for member in members)
    return {
        member.member_id: (member.client_id if count[member.client_id] == 1 else member.member_id, member.host)
        for member in members
    }


def _described(bootstrap: str, admin: AdminClient, name: str) -> Any:
    found = group_offsets.described(bootstrap, admin, name)
    if _state(found) == "Dead":
        raise group_offsets.unknown(name)
    return found


def _state(found: Any) -> str:
    return _state_name(found.state)


def _states() -> list[ConsumerGroupState]:
    from confluent_kafka import ConsumerGroupState

    return [each for each in ConsumerGroupState if each.value]


def _state_name(state: ConsumerGroupState) -> str:
    """Kafka's name of the state. confluent-kafka has PREPARING_REBALANCING for PreparingRebalance."""
    words = state.name.split("_")
    return "".join(word.capitalize() for word in words).replace("Rebalancing", "Rebalance")


def _named(words: list[str] | None, known: Mapping[str, T], option: str) -> set[T]:
    """The values of the names in `words`, regardless of case."""
    found = {name.lower(): value for name, value in known.items()}
    for word in words or ():
        if word.lower() not in found:
            raise typer.BadParameter(f"{word!r}: write one of {', '.join(sorted(known))}", param_hint=option)
    return {found[word.lower()] for word in words or ()}


def _as_json(name: str, found: Any, lags: list[group_offsets.Lag]) -> dict[str, Any]:
    return {
        "group": name,
        "state": _state(found),
        "assignor": found.partition_assignor or None,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "host": member.host,
                "partitions": [
                    {"topic": each.topic, "partition": each.partition} for each in member.assignment.topic_partitions
                ],
            }
            for member in found.members
        ],
        "partitions": [
            {
                "topic": lag.topic,
                "partition": lag.partition,
                "offset": lag.offset,
                "end": lag.end,
                "lag": lag.lag,
                "in_bucket": lag.in_bucket,
            }
            for lag in lags
        ],
    }
