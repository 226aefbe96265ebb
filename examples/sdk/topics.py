"""Creates a topic, changes it, offloads its records and lists its segments in the bucket. `topics.py ADDRESS NEW_TOPIC`"""

from __future__ import annotations

import asyncio
import sys

from tidelog import Client
from tidelog.errors import InvalidConfig, LogError


async def main(address: str, topic: str) -> None:
    async with Client.connect(address) as client:
        await client.create_topic(topic, configs={"retention.ms": "-1"})
        await client.add_partitions(topic, 2)
        try:
            await client.alter_configs(topic, {"segment.bytes": "many"})
        except InvalidConfig as error:
            print(f"refused: {error}")
        async with client.producer() as producer:
            for number in range(10):
                await producer.send(topic, b"%d" % number, partition=number % 2)
        await client.seal(topic)
        for manifest in await client.cold_manifests(topic):
            if isinstance(manifest, LogError):
                raise manifest
            print(f"partition {manifest.partition}: {manifest.records} records in the bucket, {manifest.bytes} bytes")
        async for found in client.cold_segments(topic, 0):
            print(f"offsets [{found.base}, {found.end}) in {found.key}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:3]))
