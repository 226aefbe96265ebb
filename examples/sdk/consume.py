"""Counts a topic's records by key, from a point in time on. `consume.py ADDRESS TOPIC [2024-01-31T12:00]`, in UTC."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter

from tidelog import Client, ReaderOptions, Start


async def main(address: str, topic: str, moment: str = "") -> None:
    start: Start = moment or "earliest"
    counts: Counter[bytes | None] = Counter()
    async with Client.connect(address) as client:
        # Without `until_end` the reader waits for new records and never ends.
        reader = client.reader(topic, start=start, options=ReaderOptions(until_end=True))
        async for message in reader:
            counts[message.key] += 1
    for key, count in sorted(counts.items(), key=lambda item: item[0] or b""):
        print(f"{key.decode() if key else '(no key)'}: {count}")
    print(f"read to {reader.position}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:4]))
