"""The cleaner process ends with its broker, even if the broker stops while the process starts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from service.broker.background.cleaner import cleaner_process
from service.broker.background.cleaner.cleaner_process import CleanerProcess
from storage_tiers.child_process import Started, start_child


async def test_a_cleaner_whose_broker_stops_while_it_starts_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Started] = []
    connecting = asyncio.Event()

    async def starting(*arguments: Any) -> Started:
        started.append(await start_child(*arguments))
        return started[0]

    async def connect(**_: Any) -> None:
        connecting.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(cleaner_process, "start_child", starting)
    monkeypatch.setattr(asyncio, "open_connection", connect)
    process = CleanerProcess()
    start = asyncio.create_task(process._start())
    await connecting.wait()
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    await process.end()  # the cleaner ends the process in any case
    assert started[0].socket.fileno() == -1
    assert started[0].process._process.returncode is not None
