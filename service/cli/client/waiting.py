"""Why a command waits: the node's `/readyz` as a sentence."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from service.cli.client.positions import PartitionKey
from service.cli.errors import CommandError

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
