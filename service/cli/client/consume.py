"""`tidelog consume`: prints records of topics. The command assigns the partitions, unless `--group` names a group.

This module has the command line and the formats. `following.py` reads with `read_committed`, and prints.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Annotated

import typer

from service.cli.client.following import Follower, GroupFollower, GroupSubscription, RangeFollower, Ranges
from service.cli.client.json_records import to_json
from service.cli.client.positions import SYNTAX, Position, parse_position
from service.cli.client.record_format import TOKENS, Format, parse_format
from service.cli.completion import complete_group, complete_topic
from service.cli.kafka import DEFAULT_BOOTSTRAP, Bootstrap, Profile, as_command_error
from service.cli.listener import require_reachable

GroupName = Annotated[
    str | None,
    typer.Option(
        "--group",
        "-g",
        metavar="GROUP",
        help="Read as a member of this group: the group assigns the partitions, reading resumes at its committed offsets, "
        "and the offsets of printed records are committed. --from applies to partitions without a committed offset: beginning "
        "or end.",
        autocompletion=complete_group,
        show_default=False,
    ),
]
From = Annotated[
    str,
    typer.Option(
        "--from",
        "-o",
        metavar=SYNTAX,
        help="Start at this position. -10 means ten records before the end of each partition. TIME is "
        "2013-01-01T05:15:00Z, or @ and ms since 1970. -DURATION is a time before now, such as -1h or -2d12h.",
    ),
]
To = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar=SYNTAX,
        help="Stop before this position in each partition, or at the partition's end. The syntax is that of --from.",
        show_default=False,
    ),
]


def consume(
    topics: Annotated[
        list[str], typer.Argument(metavar="TOPIC...", help="One or more topics.", autocompletion=complete_topic)
    ],
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, help="A partition of each topic; repeatable. (default: all)"),
    ] = None,
    start: From = "beginning",
    stop: To = None,
    group: GroupName = None,
    max_messages: Annotated[
        int | None, typer.Option("--max-messages", "-n", min=1, help="Stop after this many records in total.")
    ] = None,
    exit_at_end: Annotated[
        bool, typer.Option("--exit-at-end", "-e", help="Stop at the end of each partition.")
    ] = False,
    format_: Annotated[
        str | None,
        typer.Option("--format", "-f", metavar="FORMAT", help=f"A format of kcat's: {TOKENS}; \\n \\t \\xHH."),
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-k", help="Also print keys, with this text between key and value.")
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print one JSON object per line, as `produce --json` reads it. Fields that are not UTF-8 are base64, "
            "under names that end in _base64.",
        ),
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    profile: Profile = None,
) -> None:
    """Print the committed records of topics, up to the first open transaction.

    Stops at Ctrl-C, or at the limit of --max-messages, --exit-at-end or --to.
    """
    from storage_tiers.clock import SystemClock

    now_ms = SystemClock().unix_ms()
    begin = parse_position(start, now_ms, "--from")
    bound = None if stop is None else parse_position(stop, now_ms, "--to")
    show = _format(format_, key_separator, as_json=as_json)
    if group is not None:
        _check_group(group, partition, begin, bound)
    require_reachable(bootstrap)
    follower: Follower
    if group is not None:
        follower = GroupFollower(
            bootstrap, show, max_messages, exit_at_end, member=GroupSubscription(group, topics, begin)
        )
    else:
        ends = exit_at_end or bound is not None
        follower = RangeFollower(bootstrap, show, max_messages, ends, ranges=Ranges(topics, partition, begin, bound))
    _follow(follower, bootstrap, topics)


def _follow(follower: Follower, bootstrap: str, topics: Sequence[str]) -> None:
    from confluent_kafka import KafkaException

    try:
        follower.begin()
        for each in (signal.SIGINT, signal.SIGTERM):  # supervisors send SIGTERM; a member then commits and leaves
            signal.signal(each, lambda *_: follower.stop())
        follower.run()
    except KafkaException as error:
        raise as_command_error(bootstrap, error, f"cannot read {', '.join(topics)}") from None
    except KeyboardInterrupt:
        pass
    finally:
        follower.close()


def _check_group(group: str, partitions: Sequence[int] | None, begin: Position, bound: Position | None) -> None:
    if not group:
        raise typer.BadParameter("the name of the group is empty", param_hint="--group")
    if partitions:
        raise typer.BadParameter("the group assigns the partitions; leave --partition out", param_hint="--group")
    if bound is not None:
        raise typer.BadParameter(
            "a group member cannot stop at a position; leave --to out, or use --exit-at-end",
            param_hint="--group",
        )
    if not begin.is_an_end:
        raise typer.BadParameter(
            "with --group only beginning or end is allowed; use `tidelog group reset-offsets` to move the group's offsets",
            param_hint="--from",
        )


# --- printing ----------------------------------------------------------------------------------------------------------
def _format(format_: str | None, key_separator: str | None, *, as_json: bool) -> Format:
    if sum((format_ is not None, key_separator is not None, as_json)) > 1:
        raise typer.BadParameter("give one of --format, --key-separator and --json", param_hint="consume")
    if as_json:
        return to_json
    if format_ is None:
        return _text_format(key_separator)
    try:
        return parse_format(format_)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--format") from None


def _text_format(separator: str | None) -> Format:
    """Raw bytes, one line per record; null prints as nothing."""
    if separator is None:
        return lambda record: (record.value or b"") + b"\n"
    between = separator.encode()
    return lambda record: (record.key or b"") + between + (record.value or b"") + b"\n"
