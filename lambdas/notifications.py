"""Parses a queue's messages into the manifests that they name. This module is pure.

A notification says only that a manifest was written. The change itself is in the manifest. So a duplicate costs only the
reads of a cursor and a manifest, the next notification replaces a lost one, and the order does not matter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus

from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.model import Ids
from storage_tiers.cold.stores.location import StoreLocation


class NotANotification(Exception):
    """The message is not from an object store, or is about another bucket. Redelivery will not help."""


@dataclass(frozen=True, slots=True)
class QueueMessage:
    """A message of the queue: its id, with which a failure is reported, and the manifests that it names. `fault` says why a
    message could not be parsed."""

    id: str
    manifests: tuple[Ids, ...] = ()
    fault: str = ""


def messages(event: Mapping[str, Any], location: StoreLocation) -> list[QueueMessage]:
    """Parses an SQS batch whose bodies are S3 event notifications (event version 2.x). A message that cannot be parsed has a
    `fault` and no manifests. Raises ValueError if `event` is not an SQS batch."""
    records = event.get("Records")
    if not isinstance(records, list) or not all(isinstance(record, dict) and "body" in record for record in records):
        raise ValueError(
            "the event is not a batch of SQS messages; connect the function to the queue, not to the bucket"
        )
    return [_message(record, location) for record in records]


def _message(record: Mapping[str, Any], location: StoreLocation) -> QueueMessage:
    message_id = str(record.get("messageId", ""))
    try:
        return QueueMessage(message_id, tuple(dict.fromkeys(_manifests(str(record["body"]), location))))
    except NotANotification as error:
        return QueueMessage(message_id, fault=str(error))


def _manifests(body: str, location: StoreLocation) -> Sequence[Ids]:
    try:
        content = json.loads(body)
    except ValueError as error:
        raise NotANotification(f"a message's body is not JSON: {error}") from error
    if isinstance(content, dict) and content.get("Event") == "s3:TestEvent":
        return ()
    try:
        objects = [(item["s3"]["bucket"]["name"], item["s3"]["object"]["key"]) for item in content["Records"]]
    except (KeyError, TypeError) as error:
        raise NotANotification(f"a message is not an S3 notification: {error!r} is missing") from error
    found = []
    for bucket, key in objects:
        if bucket != location.bucket:
            raise NotANotification(f"a message is about bucket {bucket}, but this function reads {location.url}")
        ids = _manifest(unquote_plus(str(key)), location.prefix)
        if ids is not None:
            found.append(ids)
    return found


def _manifest(key: str, prefix: str) -> Ids | None:
    """Returns None if the key is not a manifest's below `prefix`. So a notification filter that is too broad does no harm: it
    only causes more messages."""
    if prefix:
        if not key.startswith(f"{prefix}/"):
            return None
        key = key[len(prefix) + 1 :]
    try:
        parsed = keys.parse(key)
    except ValueError:
        return None
    if not isinstance(parsed, keys.ManifestKey):
        return None
    return Ids(parsed.cluster, parsed.topic, parsed.topic_id, parsed.partition)
