"""Fetch, key 1, versions 4 to 18.

v7 has sessions (KIP-227): a fetch that asks for one is answered without (session id 0), one that belongs to a session gets
FETCH_SESSION_ID_NOT_FOUND; clients then send full requests. v12 is flexible, v13 names topics by id. The wait for
`min_bytes` is the core's. An answer is header bytes and file slices in turn; records never pass through Python.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Sequence

from grpc_api.contract.core import Core
from grpc_api.contract.log import Fetch, Fetched, Isolation
from kafka_gateway.connection import Piece
from kafka_gateway.errors import ErrorCode, code_of
from kafka_gateway.hot_parse import FetchRequest, HotParser
from kafka_gateway.reply import Later, Reply
from kafka_gateway.wire import array_size, bytes_size, text, varint
from storage_tiers.errors import InvalidRequest, LogError, NotLeader

logger = logging.getLogger(__name__)

_HEAD = struct.Struct(">ii")
_THROTTLE_ERROR_SESSION = struct.Struct(">ihi")
_PARTITION_V4 = struct.Struct(">ihqq")
_PARTITION_V5 = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_DIVERGING = struct.Struct(">iq")
_ISOLATIONS = {int(isolation): isolation for isolation in Isolation}
_NO_THROTTLE = b"\0\0\0\0"
_NO_PREFERRED_REPLICA = b"\xff\xff\xff\xff"


class FetchHandler:
    def __init__(self, core: Core) -> None:
        self._fetch = core.log.fetch
        self._parser = HotParser(core.log.topic_name)

    def handle(self, data: bytearray, view: memoryview, start: int, end: int, version: int, correlation: int) -> Reply:
        request = self._parser.fetch(data, start, end, version)
        if request.session_epoch not in (0, -1):
            return (encode_error(version, correlation, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),)
        if request.replica_id >= 0:
            return _not_a_follower(request, version, correlation)
        if not request.partitions:
            return encode(request, (), version, correlation)
        isolation = _ISOLATIONS.get(request.isolation)
        if isolation is None:
            error = InvalidRequest(f"isolation level {request.isolation}; it is 0 (uncommitted) or 1 (committed)")
            return refuse(request, version, correlation, error)
        try:
            ready = self._fetch(
                Fetch(request.partitions, request.max_wait_ms, request.min_bytes, request.max_bytes, isolation)
            )
        except Exception as error:  # noqa: BLE001 - every request gets an answer
            return refuse(request, version, correlation, error)
        if isinstance(ready, asyncio.Future):
            return Later(
                ready,
                lambda fetched: encode(request, fetched, version, correlation),
                lambda error: refuse(request, version, correlation, error),
            )
        return encode(request, ready, version, correlation)


def _not_a_follower(request: FetchRequest, version: int, correlation: int) -> Sequence[Piece]:
    """Replication does not use this door: to whom claims to be a replica, no replica is assigned here."""
    failed = Fetched(NotLeader(f"replica {request.replica_id} is not one of this partition's followers"))
    return encode(request, [failed] * len(request.partitions), version, correlation)


def encode_error(version: int, correlation: int, code: int) -> bytes:
    """An answer that has nothing but an error for the whole request; version 7 and up."""
    body = _THROTTLE_ERROR_SESSION.pack(0, code, 0) + array_size(0, version >= 12)
    if version >= 12:
        return _HEAD.pack(len(body) + 6, correlation) + b"\0" + body + b"\0"
    return _HEAD.pack(len(body) + 4, correlation) + body


def refuse(request: FetchRequest, version: int, correlation: int, error: BaseException) -> Sequence[Piece]:
    """One error for the whole request; below version 7, which has no place for it, for every partition."""
    if not isinstance(error, LogError):
        logger.error("Fetch v%d failed", version, exc_info=error)
    if version >= 7:
        return (encode_error(version, correlation, code_of(error)),)
    failed = Fetched(error if isinstance(error, LogError) else LogError("unexpected"))
    return encode(request, [failed] * len(request.partitions), version, correlation)


def encode(request: FetchRequest, fetched: Sequence[Fetched], version: int, correlation: int) -> Sequence[Piece]:
    """The answer, framed: `fetched` are those of `request.partitions`. Takes over the count of every slice."""
    flexible = version >= 12
    pieces: list[Piece] = []
    head = [_THROTTLE_ERROR_SESSION.pack(0, 0, 0) if version >= 7 else _NO_THROTTLE]
    head.append(array_size(len(request.topics), flexible))
    left = iter(fetched)
    place = size = 0
    for key, partitions in request.topics:
        head.append(key if version >= 13 else text(key, flexible))
        head.append(array_size(partitions, flexible))
        for index in request.indexes[place : place + partitions]:
            error = request.refused.get(place)
            part = next(left) if error is None else Fetched(error)
            place += 1
            head.append(_partition(index, part, version))
            if part.slices:
                gathered = b"".join(head)
                head = []
                pieces.append(gathered)
                pieces.extend(part.slices)
                size += len(gathered) + part.size
            if flexible:
                head.append(_partition_tags(part))
        if flexible:
            head.append(b"\0")
    if flexible:
        head.append(b"\0")
    if head:
        gathered = b"".join(head)
        pieces.append(gathered)
        size += len(gathered)
    prefix = _HEAD.pack(size + 5, correlation) + b"\0" if flexible else _HEAD.pack(size + 4, correlation)
    first = pieces[0]
    assert isinstance(first, bytes)
    pieces[0] = prefix + first
    return pieces


def _partition(index: int, part: Fetched, version: int) -> bytes:
    """Up to and including the size of the records."""
    code = code_of(part.error)
    flexible = version >= 12
    if version >= 5:
        row = _PARTITION_V5.pack(index, code, part.high_watermark, part.last_stable_offset, part.log_start_offset)
    else:
        row = _PARTITION_V4.pack(index, code, part.high_watermark, part.last_stable_offset)
    if part.aborted is None:
        aborted = array_size(-1, flexible)
    else:
        tags = b"\0" if flexible else b""
        aborted = array_size(len(part.aborted), flexible) + b"".join(
            _ABORTED.pack(entry.producer_id, entry.first_offset) + tags for entry in part.aborted
        )
    preferred = _NO_PREFERRED_REPLICA if version >= 11 else b""
    return row + aborted + preferred + bytes_size(part.size, flexible)


def _partition_tags(part: Fetched) -> bytes:
    """After the records: the diverging epoch (KIP-595) as tag 0, where there is one."""
    if part.diverging is None:
        return b"\0"
    value = _DIVERGING.pack(*part.diverging) + b"\0"
    return b"\1\0" + varint(len(value)) + value
