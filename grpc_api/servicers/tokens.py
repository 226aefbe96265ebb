"""The token of an idempotent stream: the producer id and epoch with which it resumes.

    version 1 | producer id int64 | epoch int16 | CRC-32C of the cluster id and all bytes before it

The CRC guards against mistakes (a truncated or corrupt token, or another cluster's), not against an attacker: any client that
may produce can claim any producer id through Kafka's protocol too.
"""

from __future__ import annotations

import struct

from storage_tiers.errors import InvalidRequest
from storage_tiers.records.checksum import crc32c

_VERSION = 1
_IDENTITY = struct.Struct(">Bqh")
_CHECK = struct.Struct(">I")


def encode_token(cluster_id: str, producer_id: int, producer_epoch: int) -> bytes:
    identity = _IDENTITY.pack(_VERSION, producer_id, producer_epoch)
    return identity + _CHECK.pack(_check(cluster_id, identity))


def decode_token(cluster_id: str, token: bytes) -> tuple[int, int]:
    """(producer id, epoch). Raises InvalidRequest for a token that this cluster never issued."""
    if len(token) == _IDENTITY.size + _CHECK.size:
        identity, check = token[: _IDENTITY.size], token[_IDENTITY.size :]
        version, producer_id, producer_epoch = _IDENTITY.unpack(identity)
        if version == _VERSION and _CHECK.unpack(check)[0] == _check(cluster_id, identity):
            return producer_id, producer_epoch
    raise InvalidRequest(
        f"the token ({len(token)} bytes) was not issued by cluster {cluster_id}; open a stream without a token"
    )


def _check(cluster_id: str, identity: bytes) -> int:
    return crc32c(cluster_id.encode() + identity)
