"""Why a command waits: the node's `/readyz`, or an open transaction, as a sentence."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from service.cli.client.positions import PartitionKey
from service.cli.errors import CommandError

if TYPE_CHECKING:
    from service.cli.client.requests import OpenTransaction

#: Timeout of the node's answer.
PATIENCE_S = 2.0
#: The body's state of a healthy store.
_SOUND_STORES = ("ok", "none")
_LONGEST_BODY = 1 << 20
ASK_THE_LOG = "the node reports no problem; retrying"


def why_nothing_comes(bootstrap: str, keys: Sequence[PartitionKey]) -> str:
    """A sentence, even if the node does not answer. Takes at most a few times `PATIENCE_S`."""
    try:
        body = _readyz(bootstrap)
    except (CommandError, OSError, ValueError):
        return "the node gives no reason; retrying. Its log and /readyz have it"
    return explain_readyz(body, [f"{topic}-{number}" for topic, number in keys])


def held_by_transaction(bootstrap: str, topic: str, opened: Mapping[int, OpenTransaction]) -> str | None:
    """A sentence about the oldest open transaction of the first partition that has one, with its transactional id if the
    coordinators tell it. None without any."""
    if not opened:
        return None
    number, (producer_id, offset) = min(opened.items())
    return (
        f"producer {producer_id}{_transactional_id(bootstrap, producer_id)} has a transaction open since offset {offset} of "
        f"{topic}-{number}, and nothing from there on is offloaded before it ends"
    )


def held_at(bootstrap: str, held: Mapping[PartitionKey, int]) -> Mapping[PartitionKey, str] | None:
    """A sentence for each of these partitions about the transaction that is open there since that offset, if one is. None if
    nothing answers. However many partitions there are, each broker is asked twice."""
    from service.cli.client import transactions
    from service.cli.listener import require_reachable

    try:
        cluster = transactions.cluster_of(require_reachable(bootstrap), {topic for topic, _ in held})
        led = [key for key in held if key in cluster.leaders]
        open_there = [each for each in transactions.producers(cluster, led) if each.start_offset == held[each.key]]
    except CommandError:
        return None
    names = _transactional_ids(bootstrap, {each.producer_id for each in open_there}) if open_there else {}
    return {
        each.key: f"producer {each.producer_id}{names.get(each.producer_id, '')} has a transaction open since then, and "
        "committed records beyond follow when it ends"
        for each in open_there
    }


def _transactional_id(bootstrap: str, producer_id: int) -> str:
    return _transactional_ids(bootstrap, {producer_id}).get(producer_id, "")


def _transactional_ids(bootstrap: str, producer_ids: Collection[int]) -> Mapping[int, str]:
    """In brackets, of those that the coordinators know."""
    from service.cli.client import transactions
    from service.cli.listener import require_reachable

    try:
        cluster = transactions.cluster_of(require_reachable(bootstrap), ())
        rows = transactions.list_transactions(cluster, producer_ids=sorted(producer_ids))
    except CommandError:
        return {}
    return {each.producer_id: f" (transactional id {each.transactional_id})" for each in reversed(rows)}


def explain_readyz(body: Mapping[str, Any], partitions: Sequence[str]) -> str:
    """`body` is the node's `/readyz`; `partitions` are those that the command waits for."""
    behind: Mapping[str, str] = body.get("store_behind", {})
    for partition in partitions:
        if partition in behind:
            return f"the object store shows less of {partition} than the node has seen: {behind[partition]}"
    if body.get("store") not in _SOUND_STORES:
        return f"the node is waiting for the object store, and retries: {body.get('store')}"
    if body.get("holding"):
        return f"the node refuses writes for now: {body['holding']}"
    refusing = [partition for partition in partitions if partition in body.get("refusing_partitions", ())]
    if refusing:
        return f"the node's disk prevents {refusing[0]} from being written or opened"
    recovering = [partition for partition in partitions if partition in body.get("recovering_partitions", ())]
    if recovering:
        return f"{recovering[0]} is recovering: it waits for the object store"
    return ASK_THE_LOG


def _readyz(bootstrap: str) -> Any:
    """Raises ValueError if the answer is not a tidelog node's."""
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import urlopen

    from service.cli.kafka import http_addresses

    address = http_addresses(bootstrap, PATIENCE_S)[0]
    try:
        with urlopen(f"http://{address}/readyz", timeout=PATIENCE_S) as answer:
            return json.loads(answer.read(_LONGEST_BODY))
    except HTTPError as error:  # not ready; the body has the reason
        return json.loads(error.read(_LONGEST_BODY))
    except HTTPException as error:
        raise ValueError(str(error)) from None
