"""Consumes cold data in its own process, so that it does not slow the measuring client.

python -m benchmarks.cold_reader HOST:PORT TOPIC        reads from offset 0 to the high watermark; prints MB/s
"""

from __future__ import annotations

import sys

from benchmarks import load

#: `max.partition.fetch.bytes`, higher than the default, as for a backfill. `load.fetch` sets `fetch.max.bytes` to four times
#: this, 32 MiB.
PARTITION_BYTES = 8 << 20
#: The number of consecutive responses that may be empty. A read of cold data may take longer than the request's `max_wait`.
EMPTY_ANSWERS = 100

if __name__ == "__main__":
    print(load.fetch(sys.argv[1], sys.argv[2], PARTITION_BYTES, empty_answers=EMPTY_ANSWERS))
