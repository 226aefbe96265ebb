"""Sends and reads without an event loop. `blocking.py ADDRESS TOPIC`"""

from __future__ import annotations

import sys

from tidelog import BlockingClient


def main(address: str, topic: str) -> None:
    with BlockingClient.connect(address) as client:
        if topic not in {known.name for known in client.topics()}:
            client.create_topic(topic)
        with client.producer() as producer:
            sent = producer.send(topic, b"a lamp", key=b"bob", headers=[("shop", b"12")]).result()
            print(f"sent to partition {sent.partition}, offset {sent.offset}")
        with client.reader(topic, partitions=[sent.partition], start={sent.partition: sent.offset}) as reader:
            message = reader.poll(10.0)
            if message is None:
                raise SystemExit("no record arrived within ten seconds")
            print(f"read {message.value!r} of {message.key!r}, sent at {message.time:%H:%M:%S} UTC")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:3])
