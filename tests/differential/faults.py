"""Plausible faults, seeded into real responses of ours: the comparison must report each.

A fault names the responses that it fits (API, path of the field, and which values there) and how it changes the value.
`seeded` yields, for each such place, a transcript as if we had answered with that fault.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.differential.message_trees import Tree
from tests.differential.peer import Exchange

#: The result of a fault that removes the field.
GONE: Any = object()


@dataclasses.dataclass(frozen=True)
class Fault:
    """A change of one field's value. `path` is as in the rules, without indexes or keys; `fits` tells whether the fault applies
    to a value."""

    name: str
    api: str
    path: str
    change: Callable[[Any], Any]
    fits: Callable[[Any], bool] = lambda value: True


def _instead(value: Any) -> Callable[[Any], Any]:
    return lambda _: value


def _more(by: int) -> Callable[[Any], Any]:
    return lambda value: value + by


def _is(wanted: Any) -> Callable[[Any], bool]:
    return lambda value: bool(value == wanted)


def _set(value: Any) -> bool:
    return value not in (None, -1, 0, "", [], False)


def _several(value: Any) -> bool:
    return len(value) > 1


def _reversed(value: Any) -> Any:
    return value[::-1]


def _is_broker(value: Any) -> bool:
    return isinstance(value, int) and value > 0


def _next_broker(broker: int) -> int:
    return broker % 3 + 1


FAULTS = (
    # error codes
    Fault("an append that failed is acknowledged", "produce", "responses.partition_responses.error_code",
          _instead("NONE"), lambda code: code != "NONE"),
    Fault("an offset out of range is an unknown partition", "fetch", "responses.partitions.error_code",
          _instead("UNKNOWN_TOPIC_OR_PARTITION"), _is("OFFSET_OUT_OF_RANGE")),
    Fault("a topic that exists is an invalid request", "create_topics", "topics.error_code",
          _instead("INVALID_REQUEST"), _is("TOPIC_ALREADY_EXISTS")),
    Fault("an unknown epoch is a fenced one", "offset_for_leader_epoch", "topics.partitions.error_code",
          _instead("FENCED_LEADER_EPOCH"), _is("UNKNOWN_LEADER_EPOCH")),
    # missing fields and rows
    Fault("no in-sync replicas", "metadata", "topics.partitions.isr_nodes", _instead(GONE)),
    Fault("no log start offset", "fetch", "responses.partitions.log_start_offset", _instead(GONE)),
    Fault("the last record is missing", "fetch", "responses.partitions.records.records",
          lambda records: records[:-1], bool),
    Fault("no synonyms", "describe_configs", "results.configs.synonyms", _instead([]), _set),
    # defaults in place of values
    Fault("no high watermark", "fetch", "responses.partitions.high_watermark", _instead(-1), _set),
    Fault("no timestamp", "list_offsets", "topics.partitions.timestamp", _instead(-1), _set),
    Fault("no leader epoch", "metadata", "topics.partitions.leader_epoch", _instead(-1), _is(0)),
    Fault("a config's type is unknown", "describe_configs", "results.configs.config_type", _instead(0), _set),
    # offset by one
    Fault("a base offset too high", "produce", "responses.partition_responses.base_offset", _more(1), lambda n: n >= 0),
    Fault("an offset too low", "list_offsets", "topics.partitions.offset", _more(-1), lambda n: n >= 0),
    Fault("a batch one further", "fetch", "responses.partitions.records.base_offset", _more(1)),
    Fault("a low watermark too high", "delete_records", "topics.partitions.low_watermark", _more(1), lambda n: n >= 0),
    # version ranges
    Fault("a version too many", "api_versions", "api_keys.max_version", _more(1)),
    Fault("a version too few", "api_versions", "api_keys.min_version", _more(1)),
    # order
    Fault("partitions in another order", "fetch", "responses.partitions", _reversed, _several),
    Fault("records in another order", "fetch", "responses.partitions.records.records", _reversed,
          lambda records: len({repr(record) for record in records}) > 1),
    # coordinators
    Fault("a heartbeat of a stale generation is of a member", "heartbeat", "error_code",
          _instead("NONE"), _is("ILLEGAL_GENERATION")),
    Fault("an unknown member is fenced", "heartbeat", "error_code", _instead("FENCED_INSTANCE_ID"), _is("UNKNOWN_MEMBER_ID")),
    Fault("a committed offset too low", "offset_fetch", "groups.topics.partitions.committed_offset",
          _more(-1), lambda n: n >= 0),
    Fault("no metadata of a commit", "offset_fetch", "groups.topics.partitions.metadata", _instead(""), _set),
    Fault("a generation too high", "join_group", "generation_id", _more(1), lambda n: n > 0),
    Fault("another leader", "join_group", "leader", _instead("nobody"), _set),
    Fault("a stable group is empty", "describe_groups", "groups.group_state", _instead("Empty"), _is("Stable")),
    Fault("an ended transaction goes on", "describe_transactions", "transaction_states.transaction_state",
          _instead("Ongoing"), lambda state: state.startswith("Complete")),
    Fault("a stale epoch ends a transaction", "end_txn", "error_code", _instead("NONE"), lambda code: code != "NONE"),
    Fault("an aborted transaction is left out", "fetch", "responses.partitions.aborted_transactions", _instead([]), bool),
)  # fmt: skip

#: Seeded into the answers of three brokers.
FAULTS_OF_THREE = (
    Fault("another leader is shown", "metadata", "topics.partitions.leader_id", _next_broker, _is_broker),
    Fault("a replica elsewhere", "metadata", "topics.partitions.replica_nodes",
          lambda ids: [_next_broker(each) for each in ids], lambda ids: isinstance(ids, list) and bool(ids)),
    Fault("a follower takes a batch", "produce", "responses.partition_responses.error_code",
          _instead("NONE"), _is("NOT_LEADER_OR_FOLLOWER")),
    Fault("a hint names another leader", "produce", "responses.partition_responses.current_leader.leader_id",
          _next_broker, _set),
    Fault("no address of the leader", "fetch", "node_endpoints", _instead([]), bool),
    Fault("a follower serves", "fetch", "responses.partitions.error_code", _instead("NONE"), _is("NOT_LEADER_OR_FOLLOWER")),
    Fault("another coordinator", "find_coordinator", "coordinators.node_id", _next_broker, _set),
    Fault("any broker coordinates", "describe_groups", "groups.error_code", _instead("NONE"), _is("NOT_COORDINATOR")),
    Fault("a transaction at any broker", "end_txn", "error_code", _instead("INVALID_TXN_STATE"), _is("NOT_COORDINATOR")),
    Fault("a broker is left out", "describe_cluster", "brokers", lambda rows: rows[:-1], _several),
    Fault("a controller that is no broker", "describe_cluster", "controller_id", _instead(9)),
    Fault("each broker is the quorum's leader", "describe_quorum", "topics.partitions.leader_id", _next_broker, _set),
)  # fmt: skip


def seeded(fault: Fault, transcript: Sequence[Exchange]) -> Iterator[tuple[int, list[Exchange]]]:
    """For each place that the fault fits: the step's number, and the transcript with the fault there."""
    for step, exchange in enumerate(transcript):
        if exchange.api != fault.api:
            continue
        for number in range(len(list(_places(exchange.answer, fault)))):
            answer = copy.deepcopy(exchange.answer)
            holder, name = list(_places(answer, fault))[number]
            changed = fault.change(holder[name])
            if changed is GONE:
                del holder[name]
            else:
                holder[name] = changed
            yield step, [*transcript[:step], dataclasses.replace(exchange, answer=answer), *transcript[step + 1 :]]


def _places(tree: Tree, fault: Fault, path: str = "") -> Iterator[tuple[Any, Any]]:
    """(dict, key) of every value that the fault would change."""
    if isinstance(tree, list):
        for item in tree:
            yield from _places(item, fault, path)
    elif isinstance(tree, dict):
        for name, value in tree.items():
            longer = f"{path}.{name}" if path else name
            if longer == fault.path and fault.fits(value):
                yield tree, name
            elif fault.path.startswith(f"{longer}."):
                yield from _places(value, fault, longer)
