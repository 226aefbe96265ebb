"""Reads the topics of a consumer's subscription, the only part of the clients' protocol that the broker reads.

Format: Kafka's ConsumerProtocolSubscription, whose first fields are a version (int16) and the topics (array of string) in all
versions. Pure.
"""

from __future__ import annotations

from service.coordination.record_fields import FieldReader
from storage_tiers.errors import CorruptRecord

#: The protocol type of consumers; Kafka Connect's is "connect".
CONSUMER = "consumer"


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The subscribed topics; None if the bytes are not a subscription, because clients may send any bytes. Kafka accepts any
    version, too."""
    reader = FieldReader(metadata, "a subscription")
    try:
        reader.int16()
        return frozenset(reader.array(reader.string))
    except CorruptRecord:
        return None
