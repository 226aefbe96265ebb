"""Ids of clusters, topics, directories and starts: 16 random bytes, written as Kafka writes a Uuid.

A generated id never begins with `-`, because a command line would read it as an option (`tidelog restore -x8f…`). Kafka's
`Uuid.randomUuid` draws again for the same reason.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storage_tiers.clock import Rng

UUID_BYTES = 16
_DASH = 62  # its index in the alphabet of URL-safe base64; the first character is the first byte's six high bits


def random_uuid(rng: Rng) -> bytes:
    """16 random bytes whose text does not begin with `-`."""
    raw = rng.token(UUID_BYTES)
    while raw[0] >> 2 == _DASH:
        raw = rng.token(UUID_BYTES)
    return raw


def uuid_text(raw: bytes) -> str:
    """22 characters of URL-safe base64, without padding."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def parse_uuid(text: str) -> bytes:
    """The inverse of `uuid_text`. ValueError (binascii.Error) if the text is not base64."""
    return base64.urlsafe_b64decode(text + "==")
