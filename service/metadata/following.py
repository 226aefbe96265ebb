"""A broker's metadata, from the log of its own process or followed from another process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from service.metadata.image import MetadataImage
from service.metadata.parts import Changes

Listener = Callable[[MetadataImage, Changes], None]


class Metadata(Protocol):
    """Implemented by `service.metadata.log.MetadataLog` and `service.controller.follower.MetadataFollower`."""

    #: Number of writes that failed on this node's disk.
    refused: int
    #: The broker in the controller's process; None for the broker in this process, -1 before the controller has answered.
    controller_id: int | None

    @property
    def image(self) -> MetadataImage:
        """The newest metadata that this node may show."""

    @property
    def term(self) -> int:
        """The term of the newest entries."""

    @property
    def applied(self) -> tuple[int, int]:
        """Offset and term of the entry that `image` is after; (0, 0) before the first."""

    @property
    def last_index(self) -> int:
        """The index of the last entry that this node has; 0 before the first."""

    @property
    def path(self) -> str:
        """A file of the data directory that moves with the metadata: the log, or the directory's identity."""

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Calls `listener(image, changes)` on the loop after each change of `image`; the returned function unsubscribes it."""

    async def close(self) -> None:
        """Closes its files and connections."""
