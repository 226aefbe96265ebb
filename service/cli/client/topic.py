"""`tidelog topic`: manages topics through Kafka's admin protocol, and seals them through tidelog's gRPC API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.client.positions import SYNTAX
from service.cli.client.sealing import Sealing
from service.cli.client.waiting import TransactionRemedy, held_by_transaction, remedies, why_nothing_comes
from service.cli.completion import complete_topic, complete_topic_config, complete_topic_config_name
from service.cli.errors import CommandError
from service.cli.kafka import (
    DEFAULT_BOOTSTRAP,
    MOST_PARTITIONS,
    REQUEST_TIMEOUT_S,
    Bootstrap,
    Profile,
    all_topics,
    connect_admin,
    describe_topics,
    grpc_addresses,
    outcome,
    pairs,
)
from service.cli.listener import require_reachable
from service.cli.output import AsJson, counted, print_json, print_table

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ConfigResource, TopicDescription

    from service.cli.client.requests import OpenTransaction

topic = typer.Typer(no_args_is_help=True, help="Create, inspect, change and seal topics.")

NewName = Annotated[str, typer.Argument(metavar="TOPIC")]
Name = Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=complete_topic)]
Configs = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        "-c",
        metavar="KEY=VALUE",
        help="A topic config; repeatable.",
        autocompletion=complete_topic_config,
    ),
]

#: The longest timeout of a seal: a week, because gRPC limits deadlines.
LONGEST_SEAL_S = 604_800
#: The maximum of a 16-bit field in the protocol.
MOST_REPLICAS = 2**15 - 1


@topic.command()
def create(
    name: NewName,
    partitions: Annotated[
        int,
        typer.Option(
            "--partitions", "-p", max=MOST_PARTITIONS, help="The number of partitions. -1: the node's num.partitions."
        ),
    ] = -1,
    replication_factor: Annotated[
        int,
        typer.Option(
            "--replication-factor", "-r", max=MOST_REPLICAS, help="The number of replicas. -1: the node's default."
        ),
    ] = -1,
    config: Configs = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if the topic exists already.")
    ] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    profile: Profile = None,
) -> None:
    """Create a topic."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import NewTopic

    if partitions == 0 or partitions < -1:
        raise typer.BadParameter(
            "it must be at least 1, or -1 for the node's num.partitions", param_hint="--partitions"
        )
    admin = connect_admin(bootstrap)
    configs = pairs(config, "--config")
    new = NewTopic(name, num_partitions=partitions, replication_factor=replication_factor, config=dict(configs))
    future = admin.create_topics([new], operation_timeout=REQUEST_TIMEOUT_S, request_timeout=REQUEST_TIMEOUT_S)[name]
    created = True
    failure = future.exception(REQUEST_TIMEOUT_S * 2)
    if isinstance(failure, KafkaException) and failure.args[0].name() == "TOPIC_ALREADY_EXISTS" and if_not_exists:
        created = False
    elif isinstance(failure, KafkaException) and failure.args[0].name() == "TOPIC_ALREADY_EXISTS":
        raise CommandError(
            f"{name} exists already; `tidelog topic describe {name}` shows it, --if-not-exists accepts it"
        )
    else:
        outcome(bootstrap, future, f"cannot create {name}")
    if as_json:
        print_json({"topic": name, "created": created})
    else:
        typer.echo(f"created {name}" if created else f"{name} exists already")


@topic.command("list")
def list_(as_json: AsJson = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, profile: Profile = None) -> None:
    """List all topics."""
    admin = connect_admin(bootstrap)
    found = describe_topics(bootstrap, admin, all_topics(bootstrap, admin))
    rows = [(d.name, len(d.partitions), max((len(p.replicas) for p in d.partitions), default=0), d) for d in found]
    if as_json:
        print_json(
            [
                {"topic": name, "topic_id": _topic_id(d), "partitions": count, "replication_factor": replicas}
                for name, count, replicas, d in rows
            ]
        )
    else:
        print_table(
            ("TOPIC", "PARTITIONS", "REPLICAS", "TOPIC ID"),
            [(name, count, replicas, _topic_id(d)) for name, count, replicas, d in rows],
        )


@topic.command()
def describe(
    name: Name, as_json: AsJson = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, profile: Profile = None
) -> None:
    """Show a topic's partitions, offsets, open transactions, and the configs that differ from their defaults."""
    admin = connect_admin(bootstrap)
    (found,) = describe_topics(bootstrap, admin, [name])
    configs = _changed_configs(bootstrap, admin, name)
    partitions = _partition_views(bootstrap, admin, found)
    if as_json:
        print_json(
            {
                "topic": found.name,
                "topic_id": _topic_id(found),
                "internal": found.is_internal,
                "partitions": [view.as_json() for view in partitions],
                "configs": configs,
            }
        )
        return
    typer.echo(f"{found.name}  id {_topic_id(found)}  {counted(len(partitions), 'partition')}")
    for key, value in configs.items():
        typer.echo(f"  {key}={value}")
    print_table(
        ("PARTITION", "LEADER", "EPOCH", "START", "END", "TIERED END", "REPLICAS", "ISR"),
        [
            (
                v.partition,
                v.leader,
                v.leader_epoch,
                v.log_start,
                v.end,
                "store behind" if v.store_behind else v.tiered_end,
                _ids(v.replicas),
                _ids(v.isr),
            )
            for v in partitions
        ],
    )
    opened = {(name, v.partition): v.open_transaction for v in partitions if v.open_transaction is not None}
    known = remedies(bootstrap, opened)
    for view in partitions:
        if (line := _held_back_line(view, known.get((name, view.partition)))) is not None:
            typer.echo(line)


@topic.command()
def alter(
    name: Name,
    config: Configs = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option(
            "--delete-config",
            metavar="KEY",
            help="Reset this config to its default; repeatable.",
            autocompletion=complete_topic_config_name,
        ),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", min=1, max=MOST_PARTITIONS, help="The new, larger number of partitions."),
    ] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    profile: Profile = None,
) -> None:
    """Change configs and the number of partitions. The configs change first, all or none."""
    from confluent_kafka.admin import NewPartitions

    new = pairs(config, "--config")
    if not (new or delete_config or partitions):
        raise typer.BadParameter("give --config, --delete-config or --partitions", param_hint="alter")
    admin = connect_admin(bootstrap)
    if new or delete_config:
        resource = _config_changes(name, new, delete_config or ())
        changed = admin.incremental_alter_configs([resource], request_timeout=REQUEST_TIMEOUT_S)
        outcome(bootstrap, changed[resource], f"cannot change the configs of {name}", name)
    if partitions:
        grown = admin.create_partitions([NewPartitions(name, partitions)], request_timeout=REQUEST_TIMEOUT_S)
        outcome(bootstrap, grown[name], f"cannot give {name} {counted(partitions, 'partition')}", name)
    if as_json:
        print_json({"topic": name, "set": new, "deleted": list(delete_config or ()), "partitions": partitions})
    else:
        typer.echo(f"changed {name}")


@topic.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC...", autocompletion=complete_topic)],
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Succeed if a topic does not exist.")] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    profile: Profile = None,
) -> None:
    """Delete topics with all their records, local and in the bucket."""
    admin = connect_admin(bootstrap)
    if if_exists:
        present = set(all_topics(bootstrap, admin))
        names = [name for name in names if name in present]
    futures = admin.delete_topics(names, request_timeout=REQUEST_TIMEOUT_S) if names else {}
    failures = []
    for name, future in futures.items():
        try:
            outcome(bootstrap, future, f"cannot delete {name}", name)
        except CommandError as error:
            failures.append(error)
        else:
            if not as_json:
                typer.echo(f"deleted {name}")
    if failures:
        raise type(failures[0])("; ".join(map(str, failures)))
    if as_json:
        print_json({"deleted": list(futures)})


@topic.command()
def seal(
    name: Name,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until all records so far are in the bucket.")] = False,
    timeout: Annotated[float, typer.Option(min=0, max=LONGEST_SEAL_S, help="The longest wait, in seconds.")] = 60.0,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    profile: Profile = None,
) -> None:
    """Close a topic's active segments now and offload all its records so far to the bucket."""
    admin = connect_admin(bootstrap)
    addresses = list(grpc_addresses(bootstrap, admin).values())
    sealing = Sealing(bootstrap, name, lambda: _why_not_offloaded(bootstrap, name))
    sealed = sealing.seal(addresses, wait=wait, timeout=timeout)
    if as_json:
        print_json({"topic": name, "partitions": sealed})
    else:
        print_table(("PARTITION", "END", "TIERED END"), [tuple(part.values()) for part in sealed])
    (found,) = describe_topics(bootstrap, admin, [name])
    missing = sorted({part.id for part in found.partitions} - {part["partition"] for part in sealed})
    if missing:
        raise CommandError(f"{name}: no broker leads partition {_ids(missing)}, so it is not sealed")


@topic.command("delete-records")
def delete_records(
    name: Name,
    before: Annotated[
        str,
        typer.Option(
            metavar=SYNTAX,
            help="The first record to keep: end keeps none, -10 the last ten, -7d or a time such as 2013-01-01T05:15:00Z the "
            "records since then.",
        ),
    ],
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="A partition; repeatable. (default: all)")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be deleted.")] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    profile: Profile = None,
) -> None:
    """Delete the oldest records of a topic, local and in the bucket. This cannot be undone."""
    from service.cli.client.record_deletion import delete_before

    rows = delete_before(bootstrap, name, partition, before, dry_run=dry_run)
    if as_json:
        print_json({"topic": name, "deleted": not dry_run, "partitions": [row._asdict() for row in rows]})
        return
    print_table(("PARTITION", "OLD START", "START", "END"), rows)
    total = sum(row.start - row.start_before for row in rows)
    typer.echo(f"{counted(total, 'offset')} {'would be deleted' if dry_run else 'deleted'}", err=True)


# --- requests ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class PartitionView:
    """`leader_epoch`, `log_start`, `end` and `tiered_end` are None if unknown or absent. `store_behind` means that the store
    shows less than the leader has seen; `/readyz` names the remedy. `open_transaction` is the oldest one, or None."""

    partition: int
    leader: int | None
    leader_epoch: int | None
    log_start: int | None
    end: int | None
    tiered_end: int | None
    open_transaction: OpenTransaction | None
    store_behind: bool
    replicas: Sequence[int]
    isr: Sequence[int]

    def as_json(self) -> Mapping[str, Any]:
        found = {name: getattr(self, name) for name in self.__dataclass_fields__}
        if self.open_transaction is not None:
            found["open_transaction"] = self.open_transaction._asdict()
        return found


def _held_back_line(view: PartitionView, remedy: TransactionRemedy | None) -> str | None:
    """A line about the partition's open transaction, the offsets that it holds back, and how to end it. None if there is no
    open transaction."""
    if view.open_transaction is None or view.end is None or remedy is None:
        return None
    producer_id, offset = view.open_transaction
    return (
        f"partition {view.partition}: producer {producer_id}{remedy.name} has a transaction open since offset {offset}. Until "
        f"it ends, read_committed consumers stop there, {counted(view.end - offset, 'offset')} before the end, and the segment "
        f"with that offset and all later ones stay on the disk{remedy.advice}"
    )


def _partition_views(bootstrap: str, admin: AdminClient, found: TopicDescription) -> list[PartitionView]:
    from service.cli.client.requests import leader_epochs

    numbers = [part.id for part in found.partitions]
    starts = _offsets(admin, found.name, numbers, earliest=True)
    ends = _offsets(admin, found.name, numbers, earliest=False)
    epochs = leader_epochs(require_reachable(bootstrap), found.name)
    tiered, opened = _tiered_ends(found), _open_transactions(admin, found, ends)
    return [
        PartitionView(
            part.id,
            part.leader.id if part.leader else None,
            epochs.get(part.id),
            starts.get(part.id),
            ends.get(part.id),
            tiered.get(part.id),
            opened.get(part.id),
            part.id in tiered and tiered[part.id] is None,
            [node.id for node in part.replicas],
            [node.id for node in part.isr],
        )
        for part in found.partitions
    ]


def _tiered_ends(found: TopicDescription) -> Mapping[int, int | None]:
    """Tiered ends by partition, from the leaders that answer; None if the store is behind."""
    from service.cli.client.requests import tiered_ends

    ends: dict[int, int | None] = {}
    for address, numbers in _led(found).items():
        with suppress(CommandError):
            ends.update(tiered_ends(address, found.name, numbers))
    return ends


def _open_transactions(
    admin: AdminClient, found: TopicDescription, ends: Mapping[int, int]
) -> Mapping[int, OpenTransaction]:
    """The open transactions by partition, from the leaders that answer. A partition may have thousands of producers, so they
    are requested only if its last stable offset is below its end."""
    from service.cli.client.requests import open_transactions

    stable = _offsets(admin, found.name, list(ends), earliest=False, committed=True) if ends else {}
    opened: dict[int, OpenTransaction] = {}
    for address, numbers in _led(found).items():
        held = [number for number in numbers if number in stable and stable[number] < ends[number]]
        with suppress(CommandError):
            opened.update(open_transactions(address, found.name, held) if held else {})
    return opened


def _led(found: TopicDescription) -> Mapping[str, list[int]]:
    """The partitions by their leader's address."""
    led: dict[str, list[int]] = {}
    for part in found.partitions:
        if part.leader:
            led.setdefault(f"{part.leader.host}:{part.leader.port}", []).append(part.id)
    return led


def _offsets(
    admin: AdminClient, name: str, numbers: Sequence[int], *, earliest: bool, committed: bool = False
) -> Mapping[int, int]:
    """Offsets by partition, without those that failed."""
    from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    spec = OffsetSpec.earliest() if earliest else OffsetSpec.latest()
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    asked = {TopicPartition(name, number): spec for number in numbers}
    found = {}
    for partition, future in admin.list_offsets(
        asked, isolation_level=level, request_timeout=REQUEST_TIMEOUT_S
    ).items():
        try:
            found[partition.partition] = future.result(REQUEST_TIMEOUT_S * 2).offset
        except KafkaException:
            continue
    return found


def _changed_configs(bootstrap: str, admin: AdminClient, name: str) -> Mapping[str, str | None]:
    from confluent_kafka.admin import ConfigResource, ConfigSource, ResourceType

    resource = ConfigResource(ResourceType.TOPIC, name)
    future = admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)[resource]
    entries = outcome(bootstrap, future, f"cannot describe the configs of {name}", name)
    return {
        key: entries[key].value for key in sorted(entries) if entries[key].source != ConfigSource.DEFAULT_CONFIG.value
    }


def _config_changes(name: str, new: Mapping[str, str], deleted: Sequence[str]) -> ConfigResource:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in new.items()]
    entries += [ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE) for key in deleted]
    return ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)


# --- sealing -----------------------------------------------------------------------------------------------------------
def _why_not_offloaded(bootstrap: str, name: str) -> str:
    try:
        admin = connect_admin(bootstrap)
        (found,) = describe_topics(bootstrap, admin, [name])
        numbers = [part.id for part in found.partitions]
        opened = _open_transactions(admin, found, _offsets(admin, name, numbers, earliest=False))
    except CommandError:
        numbers, opened = [], {}
    why = held_by_transaction(bootstrap, name, opened)
    return why or why_nothing_comes(bootstrap, [(name, number) for number in numbers])


def _ids(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def _topic_id(found: TopicDescription) -> str | None:
    """The topic id in URL-safe base64, as in Kafka's output and in the bucket's keys. librdkafka uses standard base64."""
    return str(found.topic_id).replace("+", "-").replace("/", "_") if found.topic_id else None
