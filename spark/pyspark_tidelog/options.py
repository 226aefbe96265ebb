"""The options of a read as one frozen value. Each error is one sentence.

This module needs only the standard library, because `load()` parses options on the driver before it imports the optional
dependencies. Names and meanings are those of Spark's Kafka source, if it has them. Names are case-insensitive, as in all of
Spark.

Parsing does not check that topics, partitions and offsets exist. Planning checks them against the bucket.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Special offsets in JSON, as in Spark's Kafka source.
EARLIEST = -2
LATEST = -1

DEFAULT_MAX_BYTES = 64 << 20
_SIZE = re.compile(r"(\d+)\s*(?:([kmg])b?)?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}

KNOWN = (
    "store",
    "topics",
    "topic",
    "clusterId",
    "topicId",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "snapshotCommit",
    "pushdown",
    "includeHeaders",
    "isolationLevel",
    "maxBytesPerPartition",
    "s3.endpoint",
    "s3.region",
)


class OptionError(ValueError):
    """An invalid option. The message names it and its valid values."""


#: An offset, EARLIEST or LATEST, by topic and partition.
Offsets = Mapping[str, Mapping[int, int]]
#: The commit of each manifest, by topic and partition, or one number if only one partition is read.
Commits = Mapping[str, Mapping[int, int]] | int


@dataclass(frozen=True, slots=True)
class Bound:
    """The start or the end of a read in every partition: offsets or a time (ms since 1970), never both. Without either, it is
    the start or the end of the data.

    A time means the first record at or after it, in offset order, as in Spark's Kafka source.
    """

    offsets: Offsets | None = None
    timestamp: int | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """All options of one read. `store` is a URL or an absolute path, `max_bytes` the size of a split."""

    store: str
    topics: tuple[str, ...]
    cluster_id: str | None = None
    topic_id: str | None = None
    starting: Bound = Bound()
    ending: Bound = Bound()
    snapshot: Commits | None = None
    pushdown: bool = False
    include_headers: bool = False
    read_committed: bool = True
    max_bytes: int = DEFAULT_MAX_BYTES
    s3_endpoint: str | None = None
    s3_region: str | None = None


def parse_options(options: Mapping[str, str]) -> ReadOptions:
    """Parses the options. Raises OptionError, which names the option, if one is invalid."""
    given = _checked(options)
    store = given.get("store", "")
    if not store:
        raise OptionError('a store is missing: option("store", "s3://bucket/prefix") or a directory\'s path')
    if store.startswith("memory:"):
        raise OptionError(f"{store} exists in one process only, but Spark has several; read a bucket or a directory")
    if "://" not in store:
        store = os.path.abspath(store)  # workers have another working directory
    topics = _topics(given)
    topic_id = given.get("topicid")
    if topic_id is not None and len(topics) != 1:
        raise OptionError(f"topicId names one topic's id, but {len(topics)} topics are read: {', '.join(topics)}")
    return ReadOptions(
        store=store,
        topics=topics,
        cluster_id=given.get("clusterid"),
        topic_id=topic_id,
        starting=_bound(given, "starting", topics),
        ending=_bound(given, "ending", topics),
        snapshot=_snapshot(given, topics),
        pushdown=_flag(given, "pushdown"),
        include_headers=_flag(given, "includeHeaders"),
        read_committed=_committed(given),
        max_bytes=_size(given, "maxBytesPerPartition"),
        s3_endpoint=given.get("s3.endpoint"),
        s3_region=given.get("s3.region"),
    )


#: Options of Spark's Kafka source that migrated queries may still have, with advice.
_OF_KAFKA_SOURCE = {
    "subscribe": "name the topics with the option 'topics'",
    "subscribepattern": "name each topic with the option 'topics', separated by commas",
    "assign": "name the topics with the option 'topics', and filter by the column 'partition'",
    "kafka.bootstrap.servers": "no broker is needed; name the store of the records with the option 'store'",
}


def _checked(options: Mapping[str, str]) -> dict[str, str]:
    names = {name.lower(): name for name in KNOWN}
    given: dict[str, str] = {}
    for name, value in options.items():
        if name.lower() == "path":
            raise OptionError(f'load() takes no path; give {value!r} as option("store", ...)')
        if (ours := _OF_KAFKA_SOURCE.get(name.lower())) is not None:
            raise OptionError(f"there is no option {name!r} here; it belongs to Spark's Kafka source: {ours}")
        if name.lower() not in names:
            close = difflib.get_close_matches(name.lower(), names, 1)
            hint = f", did you mean {names[close[0]]!r}?" if close else "."
            raise OptionError(f"there is no option {name!r}{hint} Options are {', '.join(KNOWN)}")
        if isinstance(value, list | tuple | set | dict):  # from Python; Spark passes text
            form = "JSON text" if isinstance(value, dict) else 'text, several names as "a,b"'
            raise OptionError(f"{name} is {value!r}, but an option is {form}")
        if value is not None and str(value).strip():
            given[name.lower()] = str(value).strip()
    return given


def _topics(given: Mapping[str, str]) -> tuple[str, ...]:
    if "topics" in given and "topic" in given:
        raise OptionError("both topic and topics are given; give one of them")
    text = given.get("topics", given.get("topic", ""))
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise OptionError('a topic is missing: option("topics", "a,b")')
    return names


def _bound(given: Mapping[str, str], which: str, topics: tuple[str, ...]) -> Bound:
    by_offset, by_time = f"{which}Offsets", f"{which}Timestamp"
    offsets, timestamp = given.get(by_offset.lower()), given.get(by_time.lower())
    if offsets is not None and timestamp is not None:
        raise OptionError(f"both {by_offset} and {by_time} are given; give one of them")
    if timestamp is not None:
        return Bound(timestamp=_milliseconds(by_time, timestamp))
    natural, senseless = ("earliest", "latest") if which == "starting" else ("latest", "earliest")
    if offsets is None or offsets.lower() == natural:
        return Bound()
    if offsets.lower() == senseless:
        raise OptionError(f"{by_offset} is {senseless!r}: such a read would always be empty")
    return Bound(offsets=_offsets(by_offset, offsets, topics, LATEST if which == "starting" else EARLIEST))


def _milliseconds(name: str, text: str) -> int:
    if re.fullmatch(r"-?\d{1,18}", text) is not None:
        return int(text)
    # This import is not at the top, because options without a time need only the standard library.
    from storage_tiers.times import first_ms, parse_time

    try:
        return first_ms(parse_time(text))
    except ValueError:
        raise OptionError(
            f"{name} is {text!r}, neither milliseconds since 1970 nor a time such as 2024-01-31T12:00:00Z"
        ) from None


def _offsets(name: str, text: str, topics: tuple[str, ...], senseless: int) -> Offsets:
    form = '{"topic": {"0": 23, "1": -2}} (-2: earliest, -1: latest)'
    document = _by_topic(name, text, topics, "earliest, latest", form)
    return {topic: _partition_offsets(name, topic, document[topic], senseless) for topic in topics}


def _snapshot(given: Mapping[str, str], topics: tuple[str, ...]) -> Commits | None:
    text = given.get("snapshotcommit")
    if text is None:
        return None
    if re.fullmatch(r"\d{1,18}", text) is not None:
        return int(text)
    document = _by_topic("snapshotCommit", text, topics, "a commit's number", '{"topic": {"0": 12, "1": 9}}')
    return {topic: _partition_offsets("snapshotCommit", topic, document[topic], -1, least=0) for topic in topics}


def _by_topic(name: str, text: str, topics: tuple[str, ...], words: str, form: str) -> dict[str, dict[str, Any]]:
    try:
        document = json.loads(text, object_pairs_hook=_once)
    except ValueError as error:
        raise OptionError(f"{name} is neither {words} nor JSON as in {form}: {error}") from None
    if not isinstance(document, dict) or not all(isinstance(per_topic, dict) for per_topic in document.values()):
        raise OptionError(f"{name} does not have the form {form}")
    if set(document) != set(topics):
        named = ", ".join(sorted(document)) or "no topic"
        raise OptionError(f"{name} must name exactly the topics that are read ({', '.join(topics)}), not {named}")
    return document


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name appears twice in one object")
    return found


def _partition_offsets(
    name: str, topic: str, document: dict[str, Any], senseless: int, *, least: int = EARLIEST
) -> dict[int, int]:
    found: dict[int, int] = {}
    for partition, offset in document.items():
        if re.fullmatch(r"0|[1-9]\d{0,9}", partition) is None:
            raise OptionError(f"{name}: {partition!r} is not a partition of {topic}")
        if type(offset) is not int or not least <= offset < 1 << 63 or offset == senseless:
            what = "commit" if least == 0 else "offset"
            raise OptionError(f"{name}: {offset!r} is not a valid {what} for {topic}-{partition}")
        found[int(partition)] = offset
    return found


def _flag(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name.lower(), "false").lower()
    if text not in ("true", "false"):
        raise OptionError(f"{name} is {text!r}, neither true nor false")
    return text == "true"


def _committed(given: Mapping[str, str]) -> bool:
    level = given.get("isolationlevel", "read_committed").lower()
    if level not in ("read_committed", "read_uncommitted"):
        raise OptionError(f"isolationLevel is {level!r}, neither read_committed nor read_uncommitted")
    return level == "read_committed"


def _size(given: Mapping[str, str], name: str) -> int:
    text = given.get(name.lower())
    if text is None:
        return DEFAULT_MAX_BYTES
    found = _SIZE.fullmatch(text)
    if found is None or int(found[1]) == 0:
        raise OptionError(f"{name} is {text!r}, not a size in bytes such as 67108864 or 64m")
    return int(found[1]) * _UNITS[(found[2] or "").lower()]
