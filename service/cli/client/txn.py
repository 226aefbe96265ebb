"""`tidelog txn`: lists and inspects transactions, finds hanging ones, and ends them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.client import transactions
from service.cli.client.positions import PartitionKey, parse_duration
from service.cli.completion import complete_topic
from service.cli.errors import CommandError
from service.cli.kafka import DEFAULT_BOOTSTRAP, HIGHEST_OFFSET, HIGHEST_PARTITION, Bootstrap, Profile
from service.cli.listener import require_reachable
from service.cli.output import AsJson, counted, moment, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from service.cli.client.transactions import PartitionProducer

txn = typer.Typer(no_args_is_help=True, help="List, inspect and abort transactions, and find hanging ones.")

#: The default of `transaction.max.timeout.ms`, as in Kafka's tool.
LONGEST_TRANSACTION = "15m"

Topic = Annotated[
    str | None, typer.Option("--topic", "-t", metavar="TOPIC", autocompletion=complete_topic, help="Filter by topic.")
]
Partition = Annotated[
    int | None, typer.Option("--partition", "-p", min=0, max=HIGHEST_PARTITION, help="Filter by partition of --topic.")
]


@txn.command("list")
def list_(
    state: Annotated[
        list[str] | None, typer.Option("--state", metavar="STATE", help="Filter by state, such as Ongoing; repeatable.")
    ] = None,
    producer_id: Annotated[
        list[int] | None,
        typer.Option("--producer-id", min=0, max=HIGHEST_OFFSET, help="Filter by producer id; repeatable."),
    ] = None,
    duration: Annotated[
        str | None, typer.Option("--duration", metavar="90s", help="Only transactions that have been open for longer.")
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            "--transactional-id-pattern", metavar="REGEX", help="Only ids that match this RE2 pattern as a whole."
        ),
    ] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    profile: Profile = None,
) -> None:
    """List all transactional ids with the state of their last transaction."""
    duration_ms = -1 if duration is None else parse_duration(duration, "--duration")
    states = _states(state or ())
    address = require_reachable(bootstrap)
    rows = transactions.list_transactions(
        transactions.cluster_of(address, ()),
        states=states,
        producer_ids=producer_id or (),
        duration_ms=duration_ms,
        pattern=pattern,
    )
    if as_json:
        print_json([row._asdict() for row in rows])
    else:
        print_table(("TRANSACTIONAL ID", "COORDINATOR", "PRODUCER ID", "STATE"), rows)


@txn.command()
def describe(
    name: Annotated[str, typer.Argument(metavar="TRANSACTIONAL_ID")],
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    profile: Profile = None,
) -> None:
    """Show a transactional id's state, and where its open transaction began in each partition."""
    from storage_tiers.clock import SystemClock

    address = require_reachable(bootstrap)
    found = transactions.describe(transactions.cluster_of(address, ()), address, name)
    began = _began(address, found)
    open_ms = None
    if found.state == transactions.ONGOING and found.start_ms is not None:
        open_ms = max(0, SystemClock().unix_ms() - found.start_ms)
    if as_json:
        partitions = [
            {"topic": topic, "partition": partition, "start_offset": began.get((topic, partition))}
            for topic, partition in found.partitions
        ]
        print_json(found._asdict() | {"duration_ms": open_ms, "partitions": partitions})
        return
    typer.echo(
        f"{name}  {found.state}  producer {found.producer_id}, epoch {found.producer_epoch}  "
        f"coordinator {found.coordinator}  timeout {found.timeout_ms} ms"
    )
    if open_ms is not None and found.start_ms is not None:
        typer.echo(f"it has been open for {open_ms} ms, since {moment(found.start_ms)}")
    if found.partitions:
        print_table(("TOPIC", "PARTITION", "BEGAN AT"), [(*key, began.get(key)) for key in found.partitions])


@txn.command()
def producers(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=complete_topic)],
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, max=HIGHEST_PARTITION, help="Only this partition.")
    ] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    profile: Profile = None,
) -> None:
    """Show the active producers of a topic's partitions, and where their open transactions began."""
    address = require_reachable(bootstrap)
    cluster = transactions.cluster_of(address, (topic,))
    _print_producers(transactions.producers(cluster, _partitions_of(cluster, topic, partition)), as_json=as_json)


@txn.command("find-hanging")
def find_hanging(
    topic: Topic = None,
    partition: Partition = None,
    longest: Annotated[
        str,
        typer.Option(
            "--max-transaction-timeout",
            metavar=LONGEST_TRANSACTION,
            help="Only transactions whose producers have been silent for longer. Use the brokers' transaction.max.timeout.ms.",
        ),
    ] = LONGEST_TRANSACTION,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    profile: Profile = None,
) -> None:
    """Find hanging transactions, and print the commands that end them.

    No coordinator will end a hanging transaction, and it blocks read_committed consumers.
    """
    from storage_tiers.clock import SystemClock

    if partition is not None and topic is None:
        raise typer.BadParameter("--partition needs a topic; name it with --topic")
    silent_ms = parse_duration(longest, "--max-transaction-timeout")
    address = require_reachable(bootstrap)
    cluster = transactions.cluster_of(address, None if topic is None else (topic,))
    keys = _partitions_of(cluster, topic, partition)
    now_ms = SystemClock().unix_ms()
    rows = transactions.hanging(cluster, address, keys, silent_ms=silent_ms, now_ms=now_ms)
    _print_producers(rows, as_json=as_json)
    if as_json:
        return
    for row in rows:
        end = f"--topic {row.topic} --partition {row.partition} --start-offset {row.start_offset}"
        typer.echo(f"To end it: tidelog txn abort {end}")
    if not rows:
        typer.echo(
            f"Producers that wrote within the last {longest} were not checked (--max-transaction-timeout).", err=True
        )


@txn.command()
def abort(
    name: Annotated[str | None, typer.Argument(metavar="[TRANSACTIONAL_ID]")] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic", "-t", metavar="TOPIC", autocompletion=complete_topic, help="The topic of a hanging transaction."
        ),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition", "-p", min=0, max=HIGHEST_PARTITION, help="The partition of the hanging transaction."
        ),
    ] = None,
    start_offset: Annotated[
        int | None,
        typer.Option("--start-offset", min=0, max=HIGHEST_OFFSET, help="The first offset of the hanging transaction."),
    ] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    profile: Profile = None,
) -> None:
    """Abort an id's open transaction and fence its producer, or end a hanging transaction in one partition."""
    where = (topic, partition, start_offset)
    if (name is None) == (where == (None, None, None)):
        raise typer.BadParameter("name a transactional id, or a hanging transaction with --topic")
    address = require_reachable(bootstrap)
    if name is not None:
        ended = _abort_id(address, name)
        if as_json:
            print_json({"transactional_id": name, "aborted": [{"topic": t, "partition": p} for t, p in ended]})
        else:
            typer.echo(f"aborted the transaction of {name} in {counted(len(ended), 'partition')}")
        return
    if topic is None or partition is None or start_offset is None:
        raise typer.BadParameter("a hanging transaction needs all of --topic, --partition and --start-offset")
    _abort_hanging(address, (topic, partition), start_offset)
    if as_json:
        print_json({"topic": topic, "partition": partition, "start_offset": start_offset, "aborted": True})
    else:
        typer.echo(f"aborted the transaction from offset {start_offset} on in {topic}-{partition}")


def _abort_id(address: str, name: str) -> Sequence[PartitionKey]:
    """Aborts the id's open transaction, and returns its partitions."""
    cluster = transactions.cluster_of(address, ())
    found = transactions.describe(cluster, address, name)
    if found.state != transactions.ONGOING:
        raise CommandError(f"{name} has no open transaction; its state is {found.state}")
    transactions.fence(cluster, found)
    return found.partitions


def _abort_hanging(address: str, key: PartitionKey, start_offset: int) -> None:
    cluster = transactions.cluster_of(address, (key[0],))
    where = f"{key[0]}-{key[1]}"
    rows = transactions.producers(cluster, _partitions_of(cluster, *key))
    open_one = next((each for each in rows if each.start_offset == start_offset), None)
    if open_one is None:
        raise CommandError(
            f"no open transaction began at offset {start_offset} of {where}; `tidelog txn producers {key[0]}` shows all"
        )
    owner = transactions.owners(cluster, address, [open_one]).get(open_one)
    if owner is not None:
        raise CommandError(
            f"the transaction of {where} is not hanging: it belongs to {owner}; `tidelog txn abort {owner}` ends it everywhere"
        )
    transactions.abort_in_partition(cluster, open_one)


def _began(address: str, found: transactions.TransactionSnapshot) -> dict[PartitionKey, int | None]:
    """The first offset of the transaction in each partition; None if the partition's leader has no open transaction of the
    producer."""
    if not found.partitions:
        return {}
    cluster = transactions.cluster_of(address, {topic for topic, _ in found.partitions})
    led = [key for key in found.partitions if key in cluster.leaders]
    rows = transactions.producers(cluster, led)
    return {row.key: row.start_offset for row in rows if row.producer_id == found.producer_id}


def _partitions_of(cluster: transactions.Cluster, topic: str | None, partition: int | None) -> Sequence[PartitionKey]:
    """All partitions, or the given one. Raises CommandError if it does not exist."""
    if partition is None:
        return list(cluster.partitions)
    if (topic, partition) not in cluster.partitions:
        raise CommandError(f"{topic} has no partition {partition}, only 0 to {len(cluster.partitions) - 1}")
    return [(str(topic), partition)]


def _states(wanted: Sequence[str]) -> list[str]:
    """Kafka's names of the states in `wanted`, regardless of case."""
    from grpc_api.contract.transactions import STATES

    names = {name.lower(): name for name in STATES}
    unknown = [each for each in wanted if each.lower() not in names]
    if unknown:
        raise typer.BadParameter(
            f"{unknown[0]!r} is not a state of a transaction; write one of {', '.join(sorted(STATES))}",
            param_hint="--state",
        )
    return [names[each.lower()] for each in wanted]


def _print_producers(rows: Sequence[PartitionProducer], *, as_json: bool) -> None:
    if as_json:
        print_json([row._asdict() for row in rows])
        return
    columns = (
        "TOPIC",
        "PARTITION",
        "PRODUCER ID",
        "EPOCH",
        "COORDINATOR EPOCH",
        "SEQUENCE",
        "BEGAN AT",
        "LAST WRITE",
    )
    print_table(
        columns,
        [
            (
                row.topic,
                row.partition,
                row.producer_id,
                row.producer_epoch,
                row.coordinator_epoch,
                row.last_sequence,
                row.start_offset,
                None if row.last_ms is None else moment(row.last_ms),
            )
            for row in rows
        ],
    )
