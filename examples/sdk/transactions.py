"""Copies a topic into another one, each record exactly once, as a member of a group. `transactions.py ADDRESS FROM TO [ID]`

Several instances with different IDs share the work. After a restart, an instance continues after the last record that was
copied.
"""

from __future__ import annotations

import asyncio
import sys

from tidelog import Client, ConsumerOptions
from tidelog.errors import TopicExists

#: Seconds without a record after which the copy counts as complete. A new group waits three seconds for further members.
QUIET_S = 10.0


async def main(address: str, source: str, target: str, identity: str = "1") -> None:
    # The transactions commit the group's offsets together with the copies. Nothing else may commit them.
    options = ConsumerOptions(start="earliest", auto_commit_s=None)
    copied = 0
    async with Client.connect(address) as client:
        try:
            await client.create_topic(target, partitions=3)
        except TopicExists:
            pass
        async with (
            client.consumer(f"copy-{source}-{target}", [source], options) as consumer,
            client.transactional_producer(f"copy-{source}-{target}-{identity}") as producer,
        ):
            while messages := await consumer.take(100, timeout_s=QUIET_S):
                # Consumers with read_committed see all of the block or nothing, even if this program dies in it.
                async with producer.transaction() as transaction:
                    for message in messages:
                        await transaction.send(target, message.value, key=message.key, headers=message.headers)
                    await transaction.send_offsets(consumer)
                copied += len(messages)
    print(f"copied {copied} records")


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:5]))
