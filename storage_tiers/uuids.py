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
_DASH = 62  # the dash's index in the alphabet of URL-safe base64; the first character is the first byte's six high bits


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


def random_dashed_uuid(rng: Rng) -> str:
    """A random UUID of version 4 as Java prints it (RFC 9562): Kafka writes ids of group members that way."""
    raw = bytearray(rng.token(UUID_BYTES))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    digits = raw.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
