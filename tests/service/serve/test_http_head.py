"""Heads of HTTP requests: common clients are understood, and ambiguous requests are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.serve.http_head import MAX_BODY_BYTES, BadRequest, PageRequest, parse_head


@pytest.mark.parametrize(
    ("head", "request_"),
    [
        (b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n", PageRequest("GET", "/readyz", "", True, 0)),
        (b"GET /readyz HTTP/1.1\r\nConnection: Close\r\n\r\n", PageRequest("GET", "/readyz", "", False, 0)),
        (b"GET /readyz HTTP/1.0\r\n\r\n", PageRequest("GET", "/readyz", "", False, 0)),
        (b"GET / HTTP/1.0\r\nconnection: x, keep-alive\r\n\r\n", PageRequest("GET", "/", "", True, 0)),
        (b"HEAD /stats?a=b HTTP/1.1\r\n\r\n", PageRequest("HEAD", "/stats", "", True, 0)),
        (b"GET http://h:1/stats?a HTTP/1.1\r\n\r\n", PageRequest("GET", "/stats", "", True, 0)),
        (b"GET http://h:1 HTTP/1.1\r\n\r\n", PageRequest("GET", "/", "", True, 0)),
        (b"GET /m HTTP/1.1\r\nAccept: a;q=1\r\nACCEPT:b\t\r\n\r\n", PageRequest("GET", "/m", "a;q=1,b", True, 0)),
        (b"POST /m HTTP/1.1\r\nContent-Length: 7\r\n\r\n", PageRequest("POST", "/m", "", True, 7)),
        (b"GET /m HTTP/1.1\r\nEmpty:\r\nName: \xc3\xa9\r\n\r\n", PageRequest("GET", "/m", "", True, 0)),
    ],
)
def test_a_head_is_parsed(head: bytes, request_: PageRequest) -> None:
    assert parse_head(head) == request_


@pytest.mark.parametrize(
    "head",
    [
        b"\r\n\r\n",
        b"GET /\r\n\r\n",
        b"get / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"GET  / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1 \r\n\r\n",
        b"\r\nGET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\nA: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nA : b\r\n\r\n",
        b"GET / HTTP/1.1\r\n: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: b\rc\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: b\nContent-Length: 1\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: \x00\r\n\r\n",
        b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: +1\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: \xb2\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1),
    ],
)
def test_a_malformed_head_is_refused(head: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_head(head)


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(head: bytes) -> None:
    try:
        request = parse_head(head + b"\r\n\r\n")
    except BadRequest:
        return
    assert 0 <= request.body <= MAX_BODY_BYTES
