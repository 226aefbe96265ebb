"""Detects a data directory that was copied, restored or moved since its last start, and stops its partitions from leading.

    home.json: {"machine": "…", "directory": {"device": 1, "inode": 2, "born_ns": 3}, "log": {…}, "log_name": "…",
                "entries": 4}

Such a directory may be older than the bucket, or than another copy that is in use, and its leaders would assign offsets a
second time. Its partitions therefore serve reads and refuse appends until this start has claimed the store and each partition
was compared with its manifest. If that takes longer than `tidelog.store.claim.wait.ms`, `tidelog.store.unclaimed` decides: keep
refusing, or serve.

Invariants: partitions of an unmoved directory lead immediately, even while the store is unreachable. A new location is recorded
only after all partitions, including those that could not be opened at first, were compared and their manifests claimed. If the
node crashes before that, the next start repeats the check. Without a store every location is accepted, but a changed location
is recorded only if the directory never had a store.

An older metadata log that replaces a damaged one is also detected, because it ends before the entry that `home.json` records.
The entry is recorded at the start, once a minute and at the stop.

Not promised: see `storage_tiers.hot.file_identity`. A restored snapshot of a volume counts as the original if it has the same
inodes, and ends above both its manifests and its own checkpoints.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

from storage_tiers import events
from storage_tiers.clock import Clock
from storage_tiers.errors import LeaderNotAvailable
from storage_tiers.files import Files, replace_file
from storage_tiers.hot.file_identity import FileIdentity, file_identity, machine_id
from storage_tiers.types import TopicPartition

log = logging.getLogger(__name__)

FILE_NAME = "home.json"
#: Values of `tidelog.store.unclaimed`.
REFUSE, SERVE = "refuse", "serve"
#: The seconds between two recordings of the metadata log's last index.
NOTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Home:
    """The content of `home.json`: the identities of the machine, of the directory and of the metadata log's file `log_name`,
    and the index `entries` of the log's last entry."""

    machine: str
    directory: FileIdentity
    log: FileIdentity
    log_name: str
    entries: int


def home_of(directory: str, log_path: str, entries: int) -> Home:
    return Home(machine_id(), file_identity(directory), file_identity(log_path), os.path.basename(log_path), entries)


def read_home(directory: str) -> Home | None:
    """The recorded home, or None if the file is missing or unreadable. The directory then counts as moved."""
    try:
        with open(os.path.join(directory, FILE_NAME), encoding="utf-8") as file:
            tree = json.load(file)
        directory_place, log_place = FileIdentity(**tree["directory"]), FileIdentity(**tree["log"])
        return Home(tree["machine"], directory_place, log_place, tree["log_name"], int(tree["entries"]))
    except (OSError, ValueError, LookupError, TypeError):
        return None


def write_home(files: Files, directory: str, home: Home) -> None:
    """Writes `home.json` durably. Raises OSError if that fails."""
    tree = {
        "machine": home.machine,
        "directory": home.directory._asdict(),
        "log": home.log._asdict(),
        "log_name": home.log_name,
        "entries": home.entries,
    }
    replace_file(files, os.path.join(directory, FILE_NAME), json.dumps(tree, indent=1).encode())


def moved(recorded: Home | None, directory: str, log_path: str, entries: int) -> str | None:
    """The difference from the last start; None if the directory was not moved and its metadata log is not older."""
    if recorded is None:
        return f"there is no {FILE_NAME} with its earlier location"
    now = home_of(directory, log_path, entries)
    if now.machine != recorded.machine:
        return "another machine"
    if now.directory != recorded.directory:
        return f"another location: device, inode and birth {tuple(now.directory)}, not {tuple(recorded.directory)}"
    if now.entries < recorded.entries:
        return f"an older metadata log: it ends at entry {now.entries}, and had reached {recorded.entries}"
    try:
        log_place = file_identity(os.path.join(os.path.dirname(log_path), recorded.log_name))
    except FileNotFoundError:
        return None  # a snapshot has replaced that log file meanwhile
    if log_place != recorded.log:
        return f"another metadata log: {tuple(log_place)}, not {tuple(recorded.log)}"
    return None


class HomeGuard:
    """Guards the partitions of a directory that may be a copy. `look` runs once at the start, `tick` periodically."""

    def __init__(
        self,
        directory: str,
        log_path: Callable[[], str],
        entries: Callable[[], int],
        files: Files,
        clock: Clock,
        *,
        wait_ms: int,
        unclaimed: str,
    ) -> None:
        self._directory = directory
        self._log_path = log_path
        self._entries = entries
        self._writing = threading.Lock()
        #: The content of the file and the time when it was written. The content is None while the file must not change.
        self._noted: Home | None = None
        self._noted_at = clock.monotonic()
        self._files = files
        self._clock = clock
        self._wait_ms = wait_ms
        self._unclaimed = unclaimed
        self._began = clock.monotonic()
        self._expired = False
        self._waits = True
        #: The reason why the directory must be compared with the store; None if no comparison is needed.
        self.away: str | None = None

    def look(self, *, new: bool, taken_over: bool, has_store: bool, had_store: bool) -> bool:
        """Checks the directory at start, and returns True if it may have been moved. Records the location of a `new` directory
        and of one that never had a store. A directory that has just `taken_over` a cluster may contain partitions to compare,
        so it is treated like a moved directory, but without a warning. Raises OSError if the record cannot be written."""
        self._began = self._clock.monotonic()
        recorded = read_home(self._directory)
        difference = moved(recorded, self._directory, self._log_path(), self._entries())
        if taken_over and has_store:
            self.away = "has just taken over the cluster"
            return False
        if difference is not None and has_store and not new:
            self.away = f"was copied, restored or moved ({difference})"
            events.warning(log, "directory.moved", path=self._directory, difference=difference)
            return True
        if difference is None or new or not had_store:
            self._record(recorded)
        return difference is not None and not new

    def refusal(self, partition: TopicPartition) -> LeaderNotAvailable | None:
        """The error of an opened partition while the directory may be a copy; None if the partition may lead."""
        if self.away is None or self._serves:
            return None
        return LeaderNotAvailable(
            f"{partition}: the data directory {self.away}; the partition "
            "accepts records once it has been compared with the store"
        )

    @property
    def _serves(self) -> bool:
        return self._expired and self._unclaimed == SERVE

    @property
    def holding(self) -> str:
        """The reason why the node is not ready, or an empty string."""
        if self.away is None or self._serves or not self._waits:
            return ""
        return f"the data directory {self.away}: the node accepts no records before it has claimed the store"

    def tick(self, *, claimed: bool, recovers: Callable[[], bool], settled: Callable[[], bool]) -> bool:
        """Called periodically. Returns True once, when partitions that wait for the comparison must lead without it. `claimed`
        means that this start has claimed the store. `recovers` returns whether a partition is recovering, and `settled` whether
        every partition is open and was compared."""
        if self.away is None:
            return False
        if claimed:
            self._waits = recovers()
            # Partitions that cannot be opened yet, or that led without the store, must also be compared.
            if not self._waits and settled():
                self.away = None
                self._record(None)
            return False
        if self._expired or (self._clock.monotonic() - self._began) * 1000 < self._wait_ms:
            return False
        self._expired = True
        events.error(log, "directory.unclaimed", path=self._directory, after_ms=self._wait_ms, then=self._unclaimed)
        return self._unclaimed == SERVE

    @property
    def note_is_due(self) -> bool:
        """Whether the metadata log has grown since the last record, and NOTE_S has passed."""
        noted, now = self._noted, self._clock.monotonic()
        return noted is not None and noted.entries < self._entries() and now - self._noted_at >= NOTE_S

    def note(self) -> None:
        """Records the metadata log's last index. Blocks. Raises OSError if that fails."""
        if self._noted is not None:
            self._record(self._noted)

    def _record(self, recorded: Home | None) -> None:
        with self._writing:
            now = home_of(self._directory, self._log_path(), self._entries())
            if now != recorded:
                write_home(self._files, self._directory, now)
            self._noted, self._noted_at = now, self._clock.monotonic()
