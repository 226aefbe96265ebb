"""The newest metadata that a broker has applied, noted in its directory, so that a start notices an older controller.

    applied-metadata.json: {"origin": 40031, "offset": 120, "term": 70211}

A controller that was started with an older copy of its directory shows an earlier state of the cluster. A broker that starts on
it would set its newest logs aside, and lead partitions that have moved away since. Such a start ends, and changes nothing. A
cluster that was taken over from its bucket has another metadata log, with another first term, the `origin`; brokers join it.

Not promised: that the last second before a broker's death is noted, since the file is written once a second at most.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from service.metadata.history import has_entry
from service.metadata.image import MetadataImage
from storage_tiers.errors import FencedWriter
from storage_tiers.files import Files, replace_file

FILE_NAME = "applied-metadata.json"


class AppliedEntry(NamedTuple):
    """An entry of a metadata log: the log's first term, the entry's offset and its term. All are 0 before the first entry."""

    origin: int
    offset: int
    term: int


class Followed(Protocol):
    """The metadata of a broker, as `MetadataFollower` has it."""

    @property
    def image(self) -> MetadataImage: ...

    @property
    def applied(self) -> tuple[int, int]: ...


def read_position(directory: str) -> AppliedEntry | None:
    """The noted position; None if the file is missing or unreadable."""
    try:
        with open(os.path.join(directory, FILE_NAME), encoding="utf-8") as file:
            tree = json.load(file)
        return AppliedEntry(int(tree["origin"]), int(tree["offset"]), int(tree["term"]))
    except (OSError, ValueError, LookupError, TypeError):
        return None


class AppliedMetadata:
    """`check` runs once the broker has the controller's metadata, and the function of `noting` periodically and at the stop."""

    def __init__(self, directory: str, files: Files, followed: Followed, controller: str) -> None:
        """`controller` is the address of the controller, for messages."""
        self._directory, self._files, self._followed, self._controller = directory, files, followed, controller
        self._noted = read_position(directory)
        self._writing = threading.Lock()

    def check(self) -> None:
        """Raises FencedWriter if the controller's metadata lacks an entry that this broker has applied."""
        shown, noted = self._now, self._noted
        if noted is None or not self._is_older:
            return
        raise FencedWriter(
            f"this broker has applied the metadata up to offset {noted.offset} of term {noted.term}, which the controller at "
            f"{self._controller} lacks: its metadata ends at offset {shown.offset} of term {shown.term}, because it runs on "
            "an older data directory. Nothing was changed. Start the controller with its newest data directory. If that is "
            "lost, take the cluster over from its bucket: start the controller's node on an empty --data-dir with "
            f"--take-over {self._followed.image.cluster_id}, then this broker again"
        )

    @property
    def is_due(self) -> bool:
        """Whether the broker has applied an entry that is not noted. Metadata that lacks the noted entry is never noted: the
        next start must still know of the newer one."""
        return self._now != self._noted and not self._is_older

    def noting(self) -> Callable[[], None]:
        """The function that notes the newest entry applied, if that is due. It blocks, and may run in a thread: it takes the
        entry here, on the loop, because the follower changes offset and term one after the other. It raises OSError if the
        disk refuses."""
        return partial(self._write, self._now) if self.is_due else lambda: None

    def _write(self, entry: AppliedEntry) -> None:
        with self._writing:
            content = json.dumps(entry._asdict()).encode()
            replace_file(self._files, os.path.join(self._directory, FILE_NAME), content)
            self._noted = entry

    @property
    def _is_older(self) -> bool:
        """Whether the metadata lacks the entry noted, and is of the same log."""
        noted, now = self._noted, self._now
        if noted is None or noted.origin != now.origin:
            return False
        return not has_entry(self._followed.image.terms, now.offset, noted.offset, noted.term)

    @property
    def _now(self) -> AppliedEntry:
        terms = self._followed.image.terms
        return AppliedEntry(terms[0].term if terms else 0, *self._followed.applied)
