"""Calls handlers as the server does, but without sockets: kio encodes the request and decodes the response."""

from __future__ import annotations

import asyncio
import os
import re
from typing import Any

from kafka_gateway.options import Options
from kafka_gateway.registry import APIS
from kafka_gateway.reply import DelayedReply, Made
from storage_tiers.types import FileSlice
from tests.kafka_gateway.kio_frames import request_frame, response
from tests.kafka_gateway.memory_core import MemoryCore

#: Byte position in a request after size, api key, version and correlation id.
AFTER_CORRELATION = 12
KEYS = {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", api.name).lower(): api for api in APIS}
CORRELATION = 4711


def joined(pieces: Made) -> bytes:
    """The bytes that go over the wire; files are read and released."""
    assert not asyncio.iscoroutine(pieces), "the answer is made in slices"
    out = []
    for piece in pieces:
        if isinstance(piece, FileSlice):
            out.append(os.pread(piece.file.fd, piece.length, piece.position))
            piece.file.release()
        else:
            out.append(bytes(piece))
    return b"".join(out)


class HandlerClient:
    def __init__(self, core: MemoryCore, options: Options | None = None) -> None:
        self.core = core
        self._handlers = {schema: api.build(core, options or Options()) for schema, api in KEYS.items()}

    def begin(self, schema: str, version: int, /, **values: Any) -> Any:
        """The handler's reply, unchanged."""
        frame = bytearray(request_frame(schema, version, correlation=CORRELATION, **values))
        return self._handlers[schema].handle(
            frame, memoryview(frame), AFTER_CORRELATION, len(frame), version, CORRELATION
        )

    async def answer(self, schema: str, version: int, /, **values: Any) -> bytes:
        """The framed response; empty if there is none."""
        reply = self.begin(schema, version, **values)
        if isinstance(reply, DelayedReply):
            try:
                reply = reply.finish(await reply.future)
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 - as the server does
                reply = reply.refuse(error)
        if asyncio.iscoroutine(reply):
            reply = await reply
        return joined(reply)

    async def ask(self, schema: str, version: int, /, **values: Any) -> Any:
        framed = await self.answer(schema, version, **values)
        assert int.from_bytes(framed[:4], "big") == len(framed) - 4
        assert int.from_bytes(framed[4:8], "big") == CORRELATION
        return response(schema, version, framed[4:])
