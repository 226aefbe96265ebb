"""Explains in a sentence why a command waits, from the node's `/readyz` or from an open transaction."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any, NamedTuple

from service.cli.client.positions import PartitionKey
from service.cli.errors import CommandError

if TYPE_CHECKING:
    from service.cli.client.requests import OpenTransaction

#: Timeout of a request to the node, in seconds.
PATIENCE_S = 2.0
#: The states of a healthy store in the body of `/readyz`.
_SOUND_STORES = ("ok", "none")
_LONGEST_BODY = 1 << 20
ASK_THE_LOG = "no node reports a problem; `tidelog cluster status` names partitions without a leader; retrying"


def why_nothing_comes(bootstrap: str, keys: Sequence[PartitionKey]) -> str:
    """A sentence about the first node that reports a problem, or a general one if no node does. Takes at most a few times
    `PATIENCE_S` for each node."""
    from service.cli.kafka import http_addresses

    found = "retrying; the node's log and /readyz have the reason"
    try:
        addresses = http_addresses(bootstrap, PATIENCE_S)
    except CommandError:
        return found
    for address in addresses:
        try:
            found = explain_readyz(_readyz(address), [f"{topic}-{number}" for topic, number in keys])
        except (OSError, ValueError):
            continue
        if found != ASK_THE_LOG:
            break
    return found


class TransactionRemedy(NamedTuple):
    """The name of an open transaction, and the command that ends it."""

    #: The transactional id in brackets, after a space. Empty if the id is unknown.
    name: str
    #: A clause with the command that ends the transaction. Empty if the coordinators did not answer.
    advice: str


def held_by_transaction(bootstrap: str, topic: str, opened: Mapping[int, OpenTransaction]) -> str | None:
    """A sentence about the oldest open transaction of the first partition that has one, and how to end it. None if no
    transaction is open."""
    if not opened:
        return None
    number, held = min(opened.items())
    remedy = remedies(bootstrap, {(topic, number): held})[topic, number]
    return (
        f"producer {held.producer_id}{remedy.name} has a transaction open since offset {held.offset} of "
        f"{topic}-{number}, and no record from that offset on is offloaded before it ends{remedy.advice}"
    )


def held_at(bootstrap: str, held: Mapping[PartitionKey, int]) -> Mapping[PartitionKey, str] | None:
    """For each partition with a transaction open since the offset in `held`, a sentence about the transaction and how to end
    it. None if no node answers. Besides two Metadata requests, each broker gets at most three requests, regardless of the
    number of partitions; two more are sent for each transactional id."""
    from service.cli.client import transactions
    from service.cli.client.requests import OpenTransaction
    from service.cli.listener import require_reachable

    try:
        cluster = transactions.cluster_of(require_reachable(bootstrap), {topic for topic, _ in held})
        led = [key for key in held if key in cluster.leaders]
        open_there = [each for each in transactions.producers(cluster, led) if each.start_offset == held[each.key]]
    except CommandError:
        return None
    known = remedies(bootstrap, {each.key: OpenTransaction(each.producer_id, held[each.key]) for each in open_there})
    return {
        each.key: f"producer {each.producer_id}{known[each.key].name} has a transaction open there, and later records follow "
        f"when it ends{known[each.key].advice}"
        for each in open_there
    }


def remedies(
    bootstrap: str, opened: Mapping[PartitionKey, OpenTransaction]
) -> Mapping[PartitionKey, TransactionRemedy]:
    """The remedy for each open transaction. If no coordinator knows a transaction, it hangs or its coordinator is not loaded
    yet. The command in the advice checks this."""
    names = _owners(bootstrap, opened) if opened else {}
    return {key: _remedy(key, each, names) for key, each in opened.items()}


def _remedy(key: PartitionKey, opened: OpenTransaction, names: Mapping[PartitionKey, str] | None) -> TransactionRemedy:
    if names is None:
        return TransactionRemedy("", "")
    if key in names:
        return TransactionRemedy(
            f" (transactional id {names[key]})", f"; `tidelog txn abort {quote(names[key])}` aborts it now"
        )
    where = f"--topic {key[0]} --partition {key[1]} --start-offset {opened.offset}"
    return TransactionRemedy("", f"; no coordinator knows it: `tidelog txn abort {where}` ends it if it hangs")


def _owners(bootstrap: str, opened: Mapping[PartitionKey, OpenTransaction]) -> Mapping[PartitionKey, str] | None:
    """The transactional ids of the open transactions that the coordinators know. None if they do not answer."""
    from service.cli.client import transactions
    from service.cli.listener import require_reachable

    try:
        address = require_reachable(bootstrap)
        cluster = transactions.cluster_of(address, {topic for topic, _ in opened})
        rows = transactions.producers(cluster, [key for key in opened if key in cluster.leaders])
        there = [each for each in rows if each.producer_id == opened[each.key].producer_id]
        return {each.key: name for each, name in transactions.owners(cluster, address, there).items()}
    except CommandError:
        return None


def explain_readyz(body: Mapping[str, Any], partitions: Sequence[str]) -> str:
    """A sentence about the problem that a node reports. `body` is the JSON of its `/readyz`; `partitions` are those for which
    the command waits."""
    behind: Mapping[str, str] = body.get("store_behind", {})
    for partition in partitions:
        if partition in behind:
            return f"the object store shows less of {partition} than the node has seen: {behind[partition]}"
    if body.get("store") not in _SOUND_STORES:
        return f"the node is waiting for the object store, and retries: {body.get('store')}"
    if body.get("holding"):
        return f"the node refuses writes at present: {body['holding']}"
    refusing = [partition for partition in partitions if partition in body.get("refusing_partitions", ())]
    if refusing:
        return f"{refusing[0]} cannot be written or opened because of an error of the node's disk"
    recovering = [partition for partition in partitions if partition in body.get("recovering_partitions", ())]
    if recovering:
        return f"{recovering[0]} is recovering: it waits for the object store"
    return ASK_THE_LOG


def _readyz(address: str) -> Any:
    """The answer of an HTTP listener. Raises OSError, or ValueError if the answer is not from a tidelog node."""
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import urlopen

    try:
        with urlopen(f"http://{address}/readyz", timeout=PATIENCE_S) as answer:
            return json.loads(answer.read(_LONGEST_BODY))
    except HTTPError as error:  # the node is not ready; the body has the reason
        return json.loads(error.read(_LONGEST_BODY))
    except HTTPException as error:
        raise ValueError(str(error)) from None
