"""Reads the topics of a consumer's subscription, the one part of the clients' protocol that the broker looks at.

Format: Kafka's ConsumerProtocolSubscription, whose first fields are a version (int16) and the topics (array of string) in all
versions. Pure.
"""

from __future__ import annotations

from service.coordination.record_fields import FieldReader
from storage_tiers.errors import CorruptRecord

#: The protocol type of consumers; Kafka Connect's is "connect".
CONSUMER = "consumer"


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """None if the bytes are no subscription: clients may put there what they like."""
    reader = FieldReader(metadata, "a subscription")
    try:
        return frozenset(reader.array(reader.string)) if reader.int16() >= 0 else None
    except CorruptRecord:
        return None
