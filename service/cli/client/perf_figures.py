"""The figures of `tidelog perf`, computed and printed as in Kafka's own perf tools.

A window covers the time between two progress lines; a total covers the whole run. Times are in ms; 1 MB is 2^20 bytes.
Percentiles come from at most MOST_SAMPLES latencies; in longer runs, only every n-th latency is a sample. In the text,
percentiles are whole ms, so that parsers of Kafka's lines can read them. The JSON output has fractions of a ms.

Pure. Source: `ProducerPerformance.Stats` and `ConsumerPerformance` of Kafka 4.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

MIB = 1 << 20
MOST_SAMPLES = 500_000
#: Quantiles by their names in Kafka's line and in JSON.
_PERCENTILES = {"50th": 0.5, "95th": 0.95, "99th": 0.99, "99.9th": 0.999}
_JSON_NAMES = {"50th": "p50", "95th": "p95", "99th": "p99", "99.9th": "p99.9"}


def per_second(amount: float, elapsed_ms: float) -> float:
    return 1000.0 * amount / elapsed_ms if elapsed_ms > 0 else 0.0


# --- producing --------------------------------------------------------------------------------------------------------
class Acknowledged(NamedTuple):
    """Records that were acknowledged in a window or in the whole run."""

    records: int
    bytes: int
    elapsed_ms: float
    average_ms: float
    max_ms: float
    percentiles_ms: Mapping[str, float]

    def progress(self) -> str:
        return (
            f"{self.records} records sent, {per_second(self.records, self.elapsed_ms):.1f} records/sec "
            f"({per_second(self.bytes, self.elapsed_ms) / MIB:.2f} MB/sec), {self.average_ms:.1f} ms avg latency, "
            f"{self.max_ms:.1f} ms max latency."
        )

    def summary(self, kind: str = "") -> str:
        """`kind` is `steady state` for records after the warm-up."""
        shown = ", ".join(f"{int(latency)} ms {name}" for name, latency in self.percentiles_ms.items())
        return (
            f"{self.records}{kind and ' '}{kind} records sent, {per_second(self.records, self.elapsed_ms):f} records/sec "
            f"({per_second(self.bytes, self.elapsed_ms) / MIB:.2f} MB/sec), {self.average_ms:.2f} ms avg latency, "
            f"{self.max_ms:.2f} ms max latency, {shown}."
        )

    def as_json(self) -> dict[str, Any]:
        percentiles = {_JSON_NAMES[name]: round(latency, 3) for name, latency in self.percentiles_ms.items()}
        return {
            "records": self.records,
            "bytes": self.bytes,
            "seconds": round(self.elapsed_ms / 1000, 6),
            "records_per_second": round(per_second(self.records, self.elapsed_ms), 1),
            "mib_per_second": round(per_second(self.bytes, self.elapsed_ms) / MIB, 3),
            "latency_ms": {"average": round(self.average_ms, 3), "max": round(self.max_ms, 3), **percentiles},
        }


class Latencies:
    """The latencies and sizes of records that are acknowledged from `started_ms` on. `expected` is the largest possible number
    of records."""

    __slots__ = (
        "_bytes",
        "_every",
        "_max_ms",
        "_samples",
        "_started_ms",
        "_sum_ms",
        "_window",
        "_window_max_ms",
        "records",
    )

    def __init__(self, expected: int, started_ms: float) -> None:
        self.records = 0
        self._bytes = 0
        self._sum_ms = self._max_ms = self._window_max_ms = 0.0
        self._every = max(1, -(-expected // MOST_SAMPLES))
        self._samples: list[float] = []
        self._started_ms = started_ms
        #: The totals when the window began: time, records, bytes, sum of latencies.
        self._window = started_ms, 0, 0, 0.0

    def add(self, latency_ms: float, size: int) -> None:
        self.records += 1
        self._bytes += size
        self._sum_ms += latency_ms
        if latency_ms > self._window_max_ms:
            self._window_max_ms = latency_ms
        if self.records % self._every == 0:
            self._samples.append(latency_ms)

    def window(self, now_ms: float) -> Acknowledged:
        """Returns the figures since the last window, and begins the next one."""
        began_ms, records, size, sum_ms = self._window
        records, size, sum_ms = self.records - records, self._bytes - size, self._sum_ms - sum_ms
        highest = self._window_max_ms
        self._window = now_ms, self.records, self._bytes, self._sum_ms
        self._max_ms, self._window_max_ms = max(self._max_ms, highest), 0.0
        return Acknowledged(records, size, now_ms - began_ms, sum_ms / records if records else 0.0, highest, {})

    def total(self, now_ms: float) -> Acknowledged:
        average = self._sum_ms / self.records if self.records else 0.0
        highest = max(self._max_ms, self._window_max_ms)
        return Acknowledged(
            self.records, self._bytes, now_ms - self._started_ms, average, highest, percentiles(self._samples)
        )


def percentiles(samples: Sequence[float]) -> dict[str, float]:
    """If there are no samples, all percentiles are 0."""
    ordered = sorted(samples)
    return {name: ordered[int(share * len(ordered))] if ordered else 0.0 for name, share in _PERCENTILES.items()}


# --- consuming --------------------------------------------------------------------------------------------------------
_RATES = ("data.consumed.in.MB", "MB.sec", "data.consumed.in.nMsg", "nMsg.sec")
_FETCH_RATES = ("rebalance.time.ms", "fetch.time.ms", "fetch.MB.sec", "fetch.nMsg.sec")
TOTAL_COLUMNS = ", ".join(("start.time", "end.time", *_RATES, *_FETCH_RATES))
PROGRESS_COLUMNS = ", ".join(("time", "threadId", *_RATES, *_FETCH_RATES))


class Consumed(NamedTuple):
    """Records that were read in a window or in the whole run. `rebalance_ms` is the elapsed time spent on rebalances."""

    began_unix_ms: int
    elapsed_ms: float
    records: int
    bytes: int
    rebalance_ms: float

    @property
    def fetch_ms(self) -> float:
        return self.elapsed_ms - self.rebalance_ms

    def summary(self) -> str:
        began, ended = _moment(self.began_unix_ms), _moment(self.began_unix_ms + round(self.elapsed_ms))
        return f"{began}, {ended}, {self._rates(self.bytes, self.records)}"

    def progress(self, so_far: Consumed) -> str:
        """`so_far` is the total at the window's end; its amounts are printed with the window's rates."""
        ended = _moment(self.began_unix_ms + round(self.elapsed_ms))
        return f"{ended}, 0, {self._rates(so_far.bytes, so_far.records)}"

    def _rates(self, size: int, records: int) -> str:
        return (
            f"{size / MIB:.4f}, {per_second(self.bytes, self.elapsed_ms) / MIB:.4f}, {records}, "
            f"{per_second(self.records, self.elapsed_ms):.4f}, {round(self.rebalance_ms)}, {round(self.fetch_ms)}, "
            f"{per_second(self.bytes, self.fetch_ms) / MIB:.4f}, {per_second(self.records, self.fetch_ms):.4f}"
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "records": self.records,
            "bytes": self.bytes,
            "seconds": round(self.elapsed_ms / 1000, 6),
            "records_per_second": round(per_second(self.records, self.elapsed_ms), 1),
            "mib_per_second": round(per_second(self.bytes, self.elapsed_ms) / MIB, 3),
            "rebalance_ms": round(self.rebalance_ms, 3),
            "fetch_ms": round(self.fetch_ms, 3),
            "fetch_records_per_second": round(per_second(self.records, self.fetch_ms), 1),
            "fetch_mib_per_second": round(per_second(self.bytes, self.fetch_ms) / MIB, 3),
        }


def _moment(unix_ms: int) -> str:
    seconds, ms = divmod(unix_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}:{ms:03}"
