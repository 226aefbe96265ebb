"""A consumer of cold data, in its own process so that it does not slow the measuring client.

python -m benchmarks.cold_reader HOST:PORT TOPIC        prints MB/s, from offset 0 to the high watermark
"""

from __future__ import annotations

import sys

from benchmarks import load

#: `max.partition.fetch.bytes`, raised for a backfill. `load.fetch` sets `fetch.max.bytes` to four times this, 32 MiB.
PARTITION_BYTES = 8 << 20
#: Consecutive responses that may be empty: a fetch of cold data may outlast its `max_wait`.
EMPTY_ANSWERS = 100

if __name__ == "__main__":
    print(load.fetch(sys.argv[1], sys.argv[2], PARTITION_BYTES, empty_answers=EMPTY_ANSWERS))
