"""Reads a topic from the bucket, without a node. `cold.py STORE TOPIC`, with STORE as in `serve --store`."""

from __future__ import annotations

import sys

from tidelog import ColdBucket


def main(store: str, topic: str) -> None:
    with ColdBucket.open(store) as bucket:
        print(f"cluster {bucket.cluster_id} has the topics {', '.join(bucket.topics())}")
        for partition, (base, end) in bucket.ranges(topic).items():
            print(f"partition {partition}: offsets [{base}, {end})")
        values = [message.value or b"" for message in bucket.read(topic)]
        print(f"{len(values)} records, {sum(map(len, values))} bytes of values")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:3])
