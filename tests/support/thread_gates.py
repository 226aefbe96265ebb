"""Holds threads at a chosen point until a test lets them continue."""

from __future__ import annotations

import errno
import os
import threading

from storage_tiers.files import OsFiles


class ThreadGate:
    """Holds the threads that call `wait` until `open` is set."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.waiting = 0

    def wait(self) -> None:
        self.waiting += 1
        assert self.open.wait(30)


class SlowFiles(OsFiles):
    """Blocks each fsync of a directory named `held`, in any thread, until `may_go` is set; with `once`, only the next one."""

    def __init__(self, *, once: bool = False) -> None:
        self.once = once
        self.held = ""
        self.fails = False
        self.reached = threading.Event()
        self.may_go = threading.Event()

    def fsync_dir(self, path: str) -> None:
        if os.path.basename(path) == self.held:
            if self.once:
                self.held = ""
            self.reached.set()
            assert self.may_go.wait(60)
            if self.fails:
                raise OSError(errno.EIO, "fsync refused")
        super().fsync_dir(path)
