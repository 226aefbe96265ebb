"""The records that a consumer hands over to its program, and the program's progress. Pure.

A record counts as processed when the program asks for the next one, commits, or closes the consumer without an exception.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from grpc_api.sdk.values import Message
from storage_tiers.types import TopicPartition


class Handover:
    """`position`, by partition: all records below this offset are processed."""

    def __init__(self) -> None:
        self.position: dict[TopicPartition, int] = {}
        self._held: deque[Message] = deque()
        self._in_work: Sequence[Message] = ()

    def __len__(self) -> int:
        """The number of records that the program has not taken."""
        return len(self._held)

    @property
    def is_idle(self) -> bool:
        """Whether the program has processed all records added so far."""
        return not self._held and not self._in_work

    def add(self, messages: Iterable[Message]) -> None:
        self._held.extend(messages)

    def next(self) -> Message | None:
        """The next record. Marks those taken before as processed."""
        self.processed()
        if not self._held:
            return None
        message = self._held.popleft()
        self._in_work = (message,)
        return message

    def take(self, most: int) -> list[Message]:
        """Up to `most` records. Marks those taken before as processed."""
        self.processed()
        taken = [self._held.popleft() for _ in range(min(most, len(self._held)))]
        self._in_work = taken
        return taken

    def processed(self) -> None:
        """Marks the records that the program has taken as processed."""
        for message in self._in_work:
            self.position[TopicPartition(message.topic, message.partition)] = message.offset + 1
        self._in_work = ()

    def restart(self, position: dict[TopicPartition, int]) -> None:
        """Drops the records that the program has not taken; reading continues at `position`."""
        self._held.clear()
        self._in_work = ()
        self.position = position
