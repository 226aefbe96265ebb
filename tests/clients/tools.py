"""The commands given to Kafka's own tools, in order, and their output with everything that varies between runs masked.

`python -m tests.clients.tools HOST:PORT FOLDER` prints the transcript of any broker without topics whose data is in FOLDER.
The transcript of Apache Kafka 4.2.1 is next to this file.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.differential.unsupported_apis import UNSUPPORTED_APIS
from tests.support import kafka_jars
from tests.support.talker import Talker

DRIVER = Path(__file__).parent / "java" / "Driver.java"
APACHE_KAFKA = Path(__file__).with_name(f"tools-kafka-{kafka_jars.VERSION}.txt")

#: The scripts of Kafka's `bin`, and the classes they run.
CLASSES = {
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
    "kafka-dump-log": "kafka.tools.DumpLogSegments",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
}
#: One command per line. {file:…} is a file with that JSON or line, {data} the broker's directory, the text after `<` the input.
COMMANDS = """
kafka-topics --list
kafka-topics --create --topic made --partitions 2 --config retention.ms=-1 --config segment.bytes=2000000
kafka-topics --create --topic made
kafka-topics --create --topic made --if-not-exists
kafka-topics --create --topic a/b
kafka-topics --create --topic wrong --config segment.bytes=5
kafka-topics --create --topic wrong --replication-factor 3
kafka-topics --list
kafka-topics --describe --topic made
kafka-topics --describe --topic-id {id of made}
kafka-topics --describe --topic nowhere
kafka-topics --describe --unavailable-partitions
kafka-topics --describe --under-replicated-partitions
kafka-topics --describe --topics-with-overrides
kafka-topics --alter --topic made --partitions 3
kafka-topics --alter --topic made --partitions 1
kafka-topics --create --topic going
kafka-topics --delete --topic going
kafka-topics --delete --topic going
kafka-topics --list --exclude-internal
kafka-configs --entity-type topics --entity-name made --alter --add-config cleanup.policy=[compact,delete],segment.ms=60000
kafka-configs --entity-type topics --entity-name made --describe
kafka-configs --entity-type topics --entity-name made --alter --delete-config segment.ms,cleanup.policy
kafka-configs --entity-type topics --entity-name made --describe --all
kafka-configs --entity-type topics --entity-name made --alter --add-config segment.bytes=5
kafka-configs --entity-type topics --entity-name nowhere --describe
kafka-configs --entity-type brokers --entity-default --alter --add-config log.retention.ms=5000000
kafka-configs --entity-type brokers --entity-name 1 --alter --add-config log.retention.ms=6000000
kafka-configs --entity-type brokers --describe
kafka-configs --entity-type brokers --entity-name 1 --alter --delete-config log.retention.ms
kafka-configs --entity-type brokers --entity-default --alter --delete-config log.retention.ms
kafka-configs --entity-type brokers --entity-name 1 --describe
kafka-configs --entity-type brokers --entity-name 1 --alter --add-config log.dirs=/elsewhere
kafka-configs --entity-type broker-loggers --entity-name 1 --alter --add-config root=DEBUG
kafka-configs --entity-type broker-loggers --entity-name 1 --alter --delete-config root
kafka-configs --entity-type client-metrics --describe
kafka-configs --entity-type client-metrics --entity-name few --alter --add-config interval.ms=20000,metrics=[a,b]
kafka-configs --entity-type client-metrics --entity-name few --describe
kafka-client-metrics --list
kafka-client-metrics --describe --name few
kafka-client-metrics --alter --name few --interval 30000
kafka-client-metrics --alter --name few --match nonsense=1
kafka-client-metrics --delete --name few
kafka-client-metrics --list
kafka-console-producer --topic made --reader-property parse.key=true --reader-property key.separator=: <0:zero\\n0:again\\n1:one
kafka-dump-log --deep-iteration --print-data-log --files {data}/made-2/00000000000000000000.log
kafka-dump-log --deep-iteration --print-data-log --files {data}/made-0/00000000000000000000.log
kafka-console-consumer --topic made --partition 2 --offset earliest --max-messages 2 \
 --formatter-property print.key=true --formatter-property print.offset=true
kafka-topics --create --topic measured
kafka-producer-perf-test --topic measured --num-records 3000 --record-size 100 --throughput -1 --command-property acks=all \
 compression.type=lz4
kafka-get-offsets
kafka-get-offsets --topic made --time earliest
kafka-get-offsets --topic made --time latest
kafka-get-offsets --topic made --time -1
kafka-get-offsets --topic made --time -2
kafka-get-offsets --topic-partitions made:0,made:1 --time max-timestamp
kafka-get-offsets --topic made --time earliest-local
kafka-get-offsets --topic made --time latest-tiered
kafka-get-offsets --topic made --time earliest-pending-upload
kafka-get-offsets --topic made --time 1700000000001
kafka-get-offsets --topic made --time 99999999999999
kafka-get-offsets --topic-partitions made:0-2
kafka-get-offsets --topic nowhere
kafka-delete-records --offset-json-file {file:{"partitions":[{"topic":"made","partition":0,"offset":1}],"version":1}}
kafka-delete-records --offset-json-file {file:{"partitions":[{"topic":"made","partition":0,"offset":-1}],"version":1}}
kafka-delete-records --offset-json-file {file:{"partitions":[{"topic":"made","partition":1,"offset":99999}],"version":1}}
kafka-get-offsets --topic-partitions made:0 --time earliest
kafka-log-dirs --describe --topic-list made
kafka-log-dirs --describe --broker-list 1,7
kafka-leader-election --election-type preferred --topic made --partition 0
kafka-leader-election --election-type preferred --topic nowhere --partition 0
kafka-leader-election --election-type unclean --path-to-json-file {file:{"partitions":[{"topic":"made","partition":1}]}}
kafka-metadata-quorum describe --status
kafka-metadata-quorum describe --replication
kafka-features describe
kafka-features downgrade --feature kraft.version=7
kafka-features upgrade --feature transaction.version=1
kafka-features upgrade --feature transaction.version=3
kafka-features downgrade --feature transaction.version=1 --dry-run
kafka-features downgrade --feature transaction.version=1
kafka-features upgrade --feature transaction.version=2 --dry-run
kafka-features upgrade --feature transaction.version=2
kafka-cluster cluster-id
kafka-cluster list-endpoints
kafka-reassign-partitions --list
kafka-reassign-partitions --verify --reassignment-json-file \
 {file:{"version":1,"partitions":[{"topic":"made","partition":0,"replicas":[1]}]}}
kafka-reassign-partitions --execute --reassignment-json-file \
 {file:{"version":1,"partitions":[{"topic":"made","partition":0,"replicas":[1,2]}]}}
kafka-transactions describe-producers --topic made --partition 1
kafka-transactions find-hanging --broker-id 1
kafka-broker-api-versions
kafka-consumer-groups --list
kafka-consumer-groups --describe --group g
kafka-consumer-groups --group g --topic made:2 --reset-offsets --to-latest --dry-run
kafka-consumer-groups --group g --topic made:2 --reset-offsets --to-latest --execute
kafka-consumer-groups --group g --topic made:2 --reset-offsets --shift-by -1 --execute
kafka-consumer-groups --group g --topic made:2 --reset-offsets --to-offset 99 --execute
kafka-consumer-groups --group g --topic made:2 --reset-offsets --to-datetime 2020-01-01T00:00:00.000 --execute
kafka-consumer-groups --group g --topic made:2 --reset-offsets --by-duration PT0S --execute
kafka-consumer-groups --group g --topic made:2 --reset-offsets --to-current --execute
kafka-consumer-groups --group g --all-topics --reset-offsets --to-earliest --execute
kafka-consumer-groups --group g --all-topics --reset-offsets --to-current --export --dry-run
kafka-consumer-groups --all-groups --all-topics --reset-offsets --to-current --export --dry-run
kafka-consumer-groups --group g --reset-offsets --from-file {file:g,made,2,0} --execute
kafka-consumer-groups --group g --reset-offsets --from-file {file:h,made,2,0} --execute
kafka-consumer-groups --group g --reset-offsets --from-file {file:made,2,1} --execute
kafka-consumer-groups --group g --topic nowhere --reset-offsets --to-earliest --execute
kafka-consumer-groups --describe --group g
kafka-consumer-groups --describe --group g --state
kafka-consumer-groups --describe --group g --members
kafka-consumer-groups --list --state
kafka-consumer-groups --list --state stable
kafka-consumer-groups --list --type
kafka-consumer-groups --delete-offsets --group g --topic made:2
kafka-consumer-groups --delete-offsets --group g --topic made:7
kafka-consumer-groups --delete --group g
kafka-consumer-groups --delete --group g
kafka-consumer-groups --describe --all-groups
kafka-topics --list
"""


#: Masks on both brokers' output for text that varies between runs.
MASKS = (
    (r"127\.0\.0\.1[: ]\d+", "HOST:PORT"),
    (r"\b1[67]\d{11}\b", "TIME"),
    (r"^\[.*\] (ERROR|WARN).*\n(\t.*\n|.*Exception.*\n)*", ""),
    (r"^\t(at .*|\.\.\. \d+ more)\n", ""),
    (r"(TopicId: |Cluster ID: |ClusterId: +)\S+", r"\1ID"),
    (r"(HighWatermark: +|\bLeaderEpoch: +|\tEpoch: |[A-Z]{22}\t)\d+ *", r"\g<1>N"),
    (r"3000 records sent.*", "3000 records sent"),
    (r'"logDir":"[^"]+"', '"logDir":"DIRECTORY"'),
    (r"crc: \d+", "crc: CRC"),
    (r"(?<=[^a-zA-Z]size: )8[67]", "86"),  # depends on the time between the two records
    (r'(?<="size":)8[67]', "86"),
    (r"\S*/(made-\d)", r"DIRECTORY/\1"),
    (r" +$", ""),
)


_FEATURES = "a feature of Kafka's own controllers and clients, or one not served yet"
_REPLICAS = (
    "Kafka sets a default of `min.insync.replicas` for eligible leader replicas (KIP-966), which a single replica does not "
    "need"
)


class Difference(NamedTuple):
    """Patterns: Kafka's output, with every match of `kafkas` replaced by `instead`, equals ours."""

    kafkas: str
    instead: str
    why: str


DIFFERENCES = (
    Difference(r"(?<=Configs: )min\.insync\.replicas=1,", "", _REPLICAS),
    Difference(r"DYNAMIC_DEFAULT_BROKER_CONFIG:min\.insync\.replicas=1, ", "", _REPLICAS),
    Difference(r"^  min\.insync\.replicas=1 .*\{DYNAMIC_DEFAULT_BROKER_CONFIG:min[^ ]*\}\n", "", _REPLICAS),
    Difference(r"CONTROLLER://", "PLAINTEXT://", "one listener serves both clients and the controller"),
    Difference(
        r"(metadata\.version\tSupportedMinVersion: )\S+",
        r"\g<1>4.2-IV1",
        "there are no older versions of the metadata to downgrade to",
    ),
    Difference(r"(SupportedMaxVersion: )1(\tFinalizedVersionLevel: )[01]", r"\g<1>0\g<2>0", _FEATURES),
    Difference(r"(?<=only supports versions 0-)1", "0", _FEATURES),
    *(
        Difference(rf"^(\t{each.name}\({each.key}\)): [^,\n]*", r"\1: UNSUPPORTED", f"not served yet: {each.what}")
        for each in UNSUPPORTED_APIS
    ),
)
#: Text that only our output has, with the reason.
OURS = (
    (r"^  tidelog\..*\n", "tidelog also shows its own configs"),
    (r" \(it is NAME=REGEX, .*\)", "tidelog adds the required form of a client metrics pattern"),
)


class Ran(NamedTuple):
    command: str
    printed: str
    status: int


def run(talker: Talker, address: str, data: Path, scratch: Path) -> Iterator[Ran]:
    """Runs every command in turn, on a broker without topics."""
    topic_id = ""
    for command in COMMANDS.replace("\\\n", "").strip().splitlines():
        line, _, typed = command.partition(" <")
        words = _with_files(line, scratch).replace("{data}", str(data)).replace("{id of made}", topic_id).split()
        arguments, typed = _arguments(words, address), typed.replace("\\n", "\n")
        answer = talker.ask(command="tool", tool=CLASSES[words[0]], arguments=arguments, input=typed)
        if named := re.search(r"Topic: made\s+TopicId: (\S+)", answer["printed"]):
            topic_id = named[1]
        yield Ran(command, masked(answer["printed"]), answer["status"])


def _with_files(line: str, scratch: Path) -> str:
    def written(match: re.Match[str]) -> str:
        path = scratch / "asked"
        path.write_text(json.dumps(json.loads(match[1])) if match[1].startswith("{") else match[1] + "\n")
        return str(path)

    return re.sub(r"\{file:(\{.*\}|[^{}]*)\}", written, line)


def _arguments(words: Sequence[str], address: str) -> list[str]:
    if words[0] == "kafka-dump-log":
        return list(words[1:])
    if words[0] == "kafka-cluster":  # it takes its options after the subcommand
        return [*words[1:], "--bootstrap-server", address]
    return ["--bootstrap-server", address, *words[1:]]


def masked(printed: str) -> str:
    """Output without the text that varies between runs, and with unordered lists sorted."""
    for pattern, instead in MASKS:
        printed = re.sub(pattern, instead, printed, flags=re.MULTILINE)
    printed = re.sub(r"(?<=Configs: )\S+", lambda found: ",".join(sorted(found[0].split(","))), printed)
    return "".join(f"{line}\n" for line in printed.splitlines() if line)


def text(ran: Iterator[Ran]) -> str:
    return "".join(f"$ {each.command}\n{each.printed}[{each.status}]\n" for each in ran)


def start(options: Sequence[str] = ()) -> Talker:
    """Java with the driver; the tools log only errors, which the masks remove."""
    quiet = ["-Xmx256m", *kafka_jars.QUICK_START, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
    return Talker(["java", *quiet, *options, "-cp", kafka_jars.class_path(), str(DRIVER)])


if __name__ == "__main__":
    with start() as talker:
        sys.stdout.write(text(run(talker, sys.argv[1], Path(sys.argv[2]), Path(sys.argv[2]).parent)))
