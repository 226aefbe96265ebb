"""Collects the gateway's counters: requests by API, their times and errors, sockets, delayed requests."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from kafka_gateway.connection import TOTAL_BOUNDS_S
from kafka_gateway.errors import ErrorCode
from service.observability.exposition import Exposition, labels_of

if TYPE_CHECKING:
    from kafka_gateway.server import GatewayServer

#: The window of the idle shares, and the minimum interval between two stored samples, both in seconds.
WINDOW_S = 30.0
LEAST_STEP_S = 1.0
#: The APIs with delayed requests, and their keys. Kafka calls the sets of delayed requests purgatories.
_WAITING = {"Produce": 0, "Fetch": 1}
_TOTAL_BOUNDS_MS = tuple([bound * 1000 for bound in TOTAL_BOUNDS_S])
_REQUESTS = "kafka_network_requestmetrics_"


class IdleWindow:
    """The idle shares over a window, computed from busy seconds. Samples are kept for the length of the window, so that several
    scrapers do not interfere."""

    def __init__(self, now: float) -> None:
        self._looks: deque[tuple[float, float, float]] = deque([(now, 0.0, 0.0)])

    def idle(self, now: float, busy_s: float, handling_s: float) -> tuple[float, float]:
        """Both idle shares, 0..1, since the oldest sample in the window."""
        looks = self._looks
        while len(looks) > 1 and looks[1][0] <= now - WINDOW_S:
            looks.popleft()
        since, busy_before, handling_before = looks[0]
        if now - looks[-1][0] >= LEAST_STEP_S:
            looks.append((now, busy_s, handling_s))
        passed = now - since
        if passed <= 0:
            return 1.0, 1.0
        return _share(busy_s - busy_before, passed), _share(handling_s - handling_before, passed)


def _share(busy_s: float, passed_s: float) -> float:
    return min(1.0, max(0.0, 1 - busy_s / passed_s))


class GatewayMetrics:
    """Collects a Kafka gateway's requests, connections and waiting requests. There is one per node, because it keeps the window
    of the idle shares."""

    def __init__(self, gateway: GatewayServer) -> None:
        self._gateway = gateway
        self._window = IdleWindow(time.perf_counter())  # noqa: TID251 - the shell

    def collect(self, into: Exposition) -> None:
        self._requests(into)
        self._sockets(into)
        self._waiting(into)

    def _requests(self, into: Exposition) -> None:
        for name, metrics in self._gateway.metrics.items():
            count = metrics.requests
            if not count:
                continue
            labels = labels_of(request=name)
            into.put(_REQUESTS + "requests_total", count, labels)
            into.put_summary(_REQUESTS + "requestbytes", count, metrics.size, labels)
            into.put_summary(_REQUESTS + "requestqueuetimems", count, metrics.queue_s * 1000, labels)
            into.put_summary(_REQUESTS + "localtimems", count, metrics.local_s * 1000, labels)
            into.put_summary(_REQUESTS + "remotetimems", metrics.waits, metrics.remote_s * 1000, labels)
            into.put_summary(_REQUESTS + "responsequeuetimems", metrics.sends, metrics.answer_queue_s * 1000, labels)
            into.put_summary(_REQUESTS + "responsesendtimems", metrics.sends, metrics.answer_send_s * 1000, labels)
            into.put_histogram(
                _REQUESTS + "totaltimems", _TOTAL_BOUNDS_MS, metrics.totals, metrics.total_s * 1000, request=name
            )
        for name, errors in self._gateway.errors:
            for code, times in errors.items():
                into.put(_REQUESTS + "errors_total", times, labels_of(request=name, error=_error_name(code)))

    def _sockets(self, into: Exposition) -> None:
        gateway, counters = self._gateway, self._gateway.counters
        handling_s = sum(each.local_s for each in gateway.metrics.values())
        loop, handlers = self._window.idle(time.perf_counter(), counters.busy_s, handling_s)  # noqa: TID251 - the shell
        into.put("kafka_network_socketserver_networkprocessoravgidle_percent", loop)
        into.put("kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent", handlers)
        sockets = "kafka_server_socket_server_metrics_"
        into.put(sockets + "connection_count", gateway.connections)
        into.put(sockets + "connection_creation_total", counters.connections_accepted)
        into.put(sockets + "connection_close_total", counters.connections_closed)
        into.put(sockets + "incoming_byte_total", counters.received_bytes)
        into.put(sockets + "outgoing_byte_total", gateway.sent_bytes)
        into.put("tidelog_gateway_busy_seconds_total", counters.busy_s)
        into.put("tidelog_gateway_failures_total", counters.failures)

    def _waiting(self, into: Exposition) -> None:
        for name, key in _WAITING.items():
            into.put(
                "kafka_server_delayedoperationpurgatory_purgatorysize",
                self._gateway.pending_replies(key),
                labels_of(delayedOperation=name),
            )
        sessions = self._gateway.fetch_sessions
        if sessions is not None:
            cache = "kafka_server_fetchsessioncache_"
            into.put(cache + "numincrementalfetchsessions", len(sessions))
            into.put(cache + "numincrementalfetchpartitionscached", sessions.partitions)
            into.put(cache + "incrementalfetchsessionevictions_total", sessions.evictions)


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
