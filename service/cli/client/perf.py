"""`tidelog perf`: puts load on a topic and prints figures in the format of Kafka's own perf tools.

The figures measure the node together with this client, which is librdkafka driven by one Python thread.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.cli.client.perf_consume import Begin, ConsumePlan, measure_consuming
from service.cli.client.perf_produce import ProducePlan, measure_producing, payload_lines, payloads_of
from service.cli.client.positions import parse_duration
from service.cli.client.produce import Acks, CodecOfBatches, Compression, RequiredAcks
from service.cli.completion import complete_group, complete_topic
from service.cli.kafka import DEFAULT_BOOTSTRAP, Bootstrap, Profile, pairs
from service.cli.output import AsJson

perf = typer.Typer(
    no_args_is_help=True, help="Measure producing and consuming. The figures are those of Kafka's perf tools."
)

Topic = Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=complete_topic)]
Records = Annotated[int, typer.Option("--records", "-n", min=1, help="The number of records.", show_default=False)]
RecordSize = Annotated[
    int | None, typer.Option("--record-size", "-s", min=1, help="Send records of this many random letters.")
]
PayloadFile = Annotated[
    Path | None,
    typer.Option(
        "--payload-file", "-f", exists=True, dir_okay=False, help="Send lines of this file, chosen at random."
    ),
]
Throughput = Annotated[float | None, typer.Option(help="At most this many records per second. (default: no limit)")]
WarmUp = Annotated[int, typer.Option(min=0, help="Print a second summary without the first N records.")]
TransactionDuration = Annotated[
    str | None,
    typer.Option(
        metavar="100ms",
        help="Send in transactions, and commit each after this time. (default with --transactional-id: 3s)",
    ),
]
TransactionalId = Annotated[
    str | None, typer.Option(metavar="ID", help="Send in transactions of this id. (default: a random one)")
]
GroupName = Annotated[
    str | None,
    typer.Option(
        "--group",
        "-g",
        metavar="GROUP",
        help="Read as a member of this group, from its committed offsets on, and commit. (default: a group for this run)",
        autocompletion=complete_group,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--config", "-c", metavar="KEY=VALUE", help="A setting of librdkafka, such as linger.ms=0; repeatable."
    ),
]
Interval = Annotated[float, typer.Option("--interval", "-i", min=0.01, help="Seconds between two lines of progress.")]
#: The default if an id but no duration is given, as in Kafka's tool.
TRANSACTION_DURATION = "3s"


@perf.command()
def produce(
    topic: Topic,
    records: Records,
    record_size: RecordSize = None,
    payload_file: PayloadFile = None,
    throughput: Throughput = None,
    warmup: WarmUp = 0,
    transaction_duration: TransactionDuration = None,
    transactional_id: TransactionalId = None,
    acks: Acks = RequiredAcks.all,
    compression: CodecOfBatches = Compression.none,
    settings: Settings = None,
    interval: Interval = 5.0,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    profile: Profile = None,
) -> None:
    """Send records, and print rates and latencies: average, maximum, percentiles."""
    from storage_tiers.clock import SystemClock, SystemRng

    rng, transaction_ms = SystemRng(), None
    if throughput is not None and throughput <= 0:
        raise typer.BadParameter("it must be above 0 records per second", param_hint="--throughput")
    if warmup >= records:
        raise typer.BadParameter("it must be below --records", param_hint="--warmup")
    if transactional_id is not None or transaction_duration is not None:
        if acks is not RequiredAcks.all:
            raise typer.BadParameter("transactions need --acks all; leave the option out", param_hint="--acks")
        transaction_ms = parse_duration(transaction_duration or TRANSACTION_DURATION, "--transaction-duration")
        transactional_id = transactional_id or f"perf-producer-{rng.token(8).hex()}"
    if record_size is not None and payload_file is None:
        payloads = payloads_of(record_size, rng)
    elif payload_file is not None and record_size is None:
        payloads = payload_lines(payload_file, rng)
    else:
        raise typer.BadParameter("give one of --record-size and --payload-file", param_hint="--record-size")
    plan = ProducePlan(topic, records, payloads, warmup, throughput, transactional_id, transaction_ms, interval)
    measure_producing(bootstrap, plan, acks, compression, pairs(settings, "--config"), SystemClock(), as_json=as_json)


@perf.command()
def consume(
    topic: Topic,
    records: Records,
    begin: Annotated[
        Begin, typer.Option("--from", "-o", help="Where to begin in partitions without a committed offset.")
    ] = Begin.beginning,
    group: GroupName = None,
    timeout: Annotated[float, typer.Option(min=0.01, help="Stop after this many seconds without a record.")] = 10.0,
    detailed: Annotated[
        bool, typer.Option("--detailed", help="Print a line per interval instead of a single summary.")
    ] = False,
    settings: Settings = None,
    interval: Interval = 5.0,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    profile: Profile = None,
) -> None:
    """Read records as a member of a group, and print rates with and without the time of rebalances. Times are UTC."""
    from storage_tiers.clock import SystemClock, SystemRng

    member = group or f"perf-consumer-{SystemRng().token(8).hex()}"
    plan = ConsumePlan(topic, records, begin, member, group is not None, timeout, interval if detailed else None)
    measure_consuming(bootstrap, plan, pairs(settings, "--config"), SystemClock(), as_json=as_json)
