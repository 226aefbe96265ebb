"""Brokers whose controller was away: they ask it again once it is back, however long their back-off would wait."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from grpc_api.contract.topics import NewTopic
from service.controller import client, follower, reconnection
from service.controller.reconnection import Reconnection
from service.metadata.commands import CreateTopic
from storage_tiers.backoff import BackoffSettings
from tests.service.broker.support import until
from tests.service.controller.support import controlling, following
from tests.service.metadata.records import topic_id

#: Seconds, longer than a test may take.
FOR_EVER_S = 3600.0


async def test_a_command_is_carried_out_once_the_controller_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = BackoffSettings(first=FOR_EVER_S, longest=FOR_EVER_S)
    monkeypatch.setattr(client, "RETRYING", endless)
    monkeypatch.setattr(follower, "RECONNECTING", endless)
    monkeypatch.setattr(client, "COMMAND_TIMEOUT_S", 2 * FOR_EVER_S)
    async with AsyncExitStack() as stack:
        async with controlling(tmp_path) as controller:
            one = await stack.enter_async_context(following(controller.address, 1))
            await until(lambda: not one.remote.fenced)
        asking = asyncio.create_task(one.remote.execute(CreateTopic(NewTopic("t"), topic_id(1))))
        await until(lambda: one.remote._reconnection._watch is not None)
        assert not asking.done()
        async with controlling(tmp_path, controller.port) as again:
            assert (await asking).topic_id == topic_id(1)
            assert one.follower.image == again.metadata.image


class Channel:
    """A channel that is lost until `back` is set. `watches` counts the calls that wait for it."""

    def __init__(self, *, connected: bool = False) -> None:
        self.back = asyncio.Event()
        self.watches = 0
        if connected:
            self.back.set()

    def get_state(self, try_to_connect: bool) -> Any:
        states = grpc.ChannelConnectivity
        return states.READY if self.back.is_set() else states.TRANSIENT_FAILURE

    async def channel_ready(self) -> None:
        self.watches += 1
        await self.back.wait()


async def test_pauses_end_together_when_the_connection_is_back() -> None:
    channel = Channel()
    lost = Reconnection(channel)
    pauses = [asyncio.create_task(lost.pause(FOR_EVER_S)) for _ in range(3)]
    await until(lambda: channel.watches > 0)
    pauses.pop().cancel()
    assert not any(each.done() for each in pauses)
    channel.back.set()
    await asyncio.gather(*pauses)
    assert channel.watches == 1, "one watch serves all pauses"


async def test_a_lost_connection_does_not_lengthen_a_pause() -> None:
    lost = Reconnection(Channel())
    await lost.pause(0.001)
    await lost.pause(reconnection.LEAST_S + 0.001)


async def test_a_pause_of_a_connected_channel_is_not_cut_short() -> None:
    """A controller that answers each call with an error is connected."""
    pausing = asyncio.create_task(Reconnection(Channel(connected=True)).pause(FOR_EVER_S))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(pausing, 3 * reconnection.LEAST_S)


async def test_a_closed_channel_ends_the_watch() -> None:
    channel = reconnection.open_controller_channel("127.0.0.1:1")
    lost = Reconnection(channel)
    pausing = asyncio.create_task(lost.pause(FOR_EVER_S))
    await until(lambda: lost._watch is not None)
    await channel.close()
    await pausing
    assert lost._watch is not None
    assert lost._watch.exception() is None
