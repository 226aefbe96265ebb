"""`tidelog configs`: shows configs of brokers and topics with the source of each value, and changes the configs of brokers."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Annotated

import typer

from service.cli.client.config_requests import (
    APPEND,
    BROKER,
    DELETE,
    SET,
    SUBTRACT,
    TOPIC,
    ConfigChange,
    Described,
    alter_configs,
    describe_configs,
)
from service.cli.client.requests import brokers
from service.cli.completion import (
    complete_broker_config,
    complete_broker_config_name,
    complete_config_name,
    complete_topic,
)
from service.cli.errors import CommandError
from service.cli.kafka import DEFAULT_BOOTSTRAP, Bootstrap, Profile, pairs
from service.cli.listener import require_reachable
from service.cli.output import AsJson, print_json, print_table

configs = typer.Typer(no_args_is_help=True, help="Inspect configs, and change those of running brokers.")

#: A part of the node's error message, which is Kafka's text.
_ONLY_AT_THE_START = "Cannot update these configs dynamically"

Broker = Annotated[int | None, typer.Option("--broker", metavar="ID", min=0, help="The id of one broker.")]
New = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set a config; repeatable.", autocompletion=complete_broker_config),
]
Deleted = Annotated[
    list[str] | None,
    typer.Option(
        "--delete",
        metavar="KEY",
        help="Reset a config to its default; repeatable.",
        autocompletion=complete_broker_config_name,
    ),
]
Appended = Annotated[
    list[str] | None,
    typer.Option(
        "--append", metavar="KEY=ITEM", help="Add an item to a list; repeatable.", autocompletion=complete_broker_config
    ),
]
Subtracted = Annotated[
    list[str] | None,
    typer.Option(
        "--subtract",
        metavar="KEY=ITEM",
        help="Remove an item from a list; repeatable.",
        autocompletion=complete_broker_config,
    ),
]


@configs.command()
def describe(
    keys: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY]...",
            help="Show only these, with their documentation and the source of each value.",
            autocompletion=complete_config_name,
        ),
    ] = None,
    broker: Broker = None,
    topic: Annotated[
        str | None,
        typer.Option("--topic", metavar="TOPIC", help="A topic instead of a broker.", autocompletion=complete_topic),
    ] = None,
    all_brokers: Annotated[bool, typer.Option("--all-brokers", help="The dynamic defaults of all brokers.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Include configs at their defaults.")] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    profile: Profile = None,
) -> None:
    """Show the configs that differ from their defaults, by default those of the first broker."""
    if sum((broker is not None, topic is not None, all_brokers)) > 1:
        raise typer.BadParameter("give one of --broker, --topic and --all-brokers", param_hint="describe")
    address = require_reachable(bootstrap)
    name = "" if all_brokers else str(brokers(address)[0] if broker is None else broker)
    kind, name = (BROKER, name) if topic is None else (TOPIC, topic)
    found = describe_configs(address, kind, name, keys or ())
    absent = sorted(set(keys or ()) - {entry.name for entry in found})
    if absent:
        known = [entry.name for entry in describe_configs(address, kind, name, ())]
        raise CommandError(_no_such(absent, known, of_topic=topic is not None))
    if not (everything or keys):
        found = [entry for entry in found if entry.source != "default"]
    if as_json:
        print_json([_as_json(entry) for entry in found])
    elif keys:
        for entry in found:
            _print_entry(entry)
    else:
        print_table(("KEY", "VALUE", "SET BY"), [(entry.name, _value(entry), entry.source) for entry in found])


@configs.command()
def alter(
    new: New = None,
    deleted: Deleted = None,
    appended: Appended = None,
    subtracted: Subtracted = None,
    broker: Broker = None,
    validate_only: Annotated[
        bool, typer.Option("--validate-only", help="Validate the change without making it.")
    ] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    profile: Profile = None,
) -> None:
    """Change configs of all running brokers, or of one. Makes all changes or none."""
    changes = [ConfigChange(key, SET, value) for key, value in pairs(new, "--set").items()]
    changes += [ConfigChange(key, DELETE, None) for key in deleted or ()]
    changes += [ConfigChange(key, APPEND, value) for key, value in pairs(appended, "--append").items()]
    changes += [ConfigChange(key, SUBTRACT, value) for key, value in pairs(subtracted, "--subtract").items()]
    if not changes:
        raise typer.BadParameter("give --set, --delete, --append or --subtract", param_hint="alter")
    name = "" if broker is None else str(broker)
    address = require_reachable(bootstrap)
    _require_known(address, deleted or ())
    try:
        alter_configs(address, BROKER, name, changes, validate_only=validate_only)
    except CommandError as error:
        if _ONLY_AT_THE_START not in str(error):
            raise
        raise CommandError(f"{error}. Set it when the node starts: tidelog serve --set KEY=VALUE") from None
    if as_json:
        print_json({"broker": broker, "changed": [change.name for change in changes], "validated": validate_only})
    else:
        whom = f"broker {broker}" if name else "all brokers"
        typer.echo(f"{'could change' if validate_only else 'changed'} {whom}")


def _require_known(address: str, deleted: Sequence[str]) -> None:
    """Refuses unknown names. The node, like Kafka, accepts the deletion of an unknown config, so a typo would look like a
    success."""
    if not deleted:
        return
    known = [entry.name for entry in describe_configs(address, BROKER, str(brokers(address)[0]))]
    absent = sorted(set(deleted) - set(known))
    if absent:
        raise CommandError(_no_such(absent, known, of_topic=False))


def _no_such(absent: list[str], known: list[str], *, of_topic: bool) -> str:
    near = [f"log.{key}" for key in absent if f"log.{key}" in known]  # the broker's name for a topic's key
    near = near or list(dict.fromkeys(each for key in absent for each in difflib.get_close_matches(key, known, 2)))
    hint = f" (did you mean {' or '.join(near)}?)" if near else ""
    whose, others = (
        ("a topic", "a broker's are shown without --topic") if of_topic else ("a broker", "--topic T shows a topic's")
    )
    return f"{whose} has no config {', '.join(absent)}{hint}; {others}, and `tidelog configs describe --all` lists all"


def _value(entry: Described) -> str | None:
    return "[hidden]" if entry.sensitive else entry.value


def _as_json(entry: Described) -> dict[str, object]:
    return {
        "key": entry.name,
        "value": entry.value,
        "set_by": entry.source,
        "read_only": entry.read_only,
        "sensitive": entry.sensitive,
        "synonyms": [{"key": key, "value": value, "set_by": source} for key, value, source in entry.synonyms],
        "documentation": entry.documentation,
    }


def _print_entry(entry: Described) -> None:
    typer.echo(f"{entry.name}={_value(entry) or ''}  ({entry.source}{', read-only' if entry.read_only else ''})")
    typer.echo(f"  {entry.documentation}")
    for key, value, source in entry.synonyms:
        typer.echo(f"  {source}: {key}={'[hidden]' if entry.sensitive else value}")
