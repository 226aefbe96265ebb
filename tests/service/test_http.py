"""The HTTP door before strangers: what they get wrong is answered, and is not in the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping

import pytest

from service.http import HttpServer, Readiness, serve_http


async def _stats() -> Mapping[str, object]:
    raise RuntimeError("a defect")


@pytest.fixture
async def server() -> AsyncIterator[HttpServer]:
    started = await serve_http(Readiness(), _stats, lambda open_metrics: None, "127.0.0.1", 0)
    yield started
    await started.stop()


async def _answer(server: HttpServer, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request)
    line = await reader.readline()
    writer.close()
    return line


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 20_000 + b"\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nzz",
    ],
    ids=["long path", "many headers", "two lengths"],
)
async def test_a_malformed_request_is_answered_and_leaves_no_line(
    server: HttpServer, caplog: pytest.LogCaptureFixture, request_: bytes
) -> None:
    assert b" 400 " in await _answer(server, request_)
    assert [record for record in caplog.records if record.levelno >= logging.INFO] == []


async def test_a_defect_of_ours_is_in_the_log(server: HttpServer, caplog: pytest.LogCaptureFixture) -> None:
    assert b" 500 " in await _answer(server, b"GET /stats HTTP/1.1\r\nHost: x\r\n\r\n")
    assert any(record.exc_info and isinstance(record.exc_info[1], RuntimeError) for record in caplog.records)
