"""Sends a thousand orders, keyed and compressed, and waits for each acknowledgement. `produce.py ADDRESS TOPIC`"""

from __future__ import annotations

import asyncio
import json
import sys

from tidelog import Client, ProducerOptions
from tidelog.errors import TopicExists

CUSTOMERS = ("alice", "bob", "carol")


async def main(address: str, topic: str) -> None:
    async with Client.connect(address) as client:
        try:
            await client.create_topic(topic, partitions=3)
        except TopicExists:
            print(f"{topic} exists already")
        async with client.producer(ProducerOptions(compression="zstd")) as producer:
            sent = [
                await producer.send(topic, json.dumps({"order": number}).encode(), key=CUSTOMERS[number % 3].encode())
                for number in range(1000)
            ]
            await producer.flush()
        # Each future returns its record's partition and offset, or raises the error.
        records = [future.result() for future in sent]
        print(
            f"{len(records)} orders, the last one at offset {records[-1].offset} of partition {records[-1].partition}"
        )


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:3]))
