"""Brokers in other processes register, follow the metadata and send commands; a controller that restarts is found again."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import grpc.aio
import pytest
from grpc import StatusCode
from grpc.aio import AioRpcError, Metadata

from grpc_api.channel import NodeChannel, answered, open_channel
from grpc_api.contract.topics import NewTopic
from service.controller import controller_pb2 as pb
from service.controller.client import RETRYING
from service.controller.follower import MetadataFollower
from service.controller.limits import MAX_COMMANDS_OF_A_CALL, MAX_REQUEST_BYTES
from service.controller.membership import ClusterMembership
from service.metadata.command_codec import encode_command
from service.metadata.commands import AllocateProducerIds, CreateTopic, ForgetTopic, SkipProducerIds
from service.metadata.parts import NO_LEADER
from service.metadata.recent import MAX_RECENT_BYTES
from storage_tiers.backoff import Backoff
from storage_tiers.clock import SystemClock
from storage_tiers.errors import (
    BrokerNotRegistered,
    DuplicateBroker,
    InvalidConfig,
    InvalidRequest,
    LogError,
    RequestTimedOut,
    StaleBrokerEpoch,
    TopicExists,
    UnsupportedVersion,
    WrongCluster,
)
from storage_tiers.files import OsFiles
from tests.service.broker.support import until
from tests.service.controller.support import CLUSTER, SESSION_S, Following, controlling, following, registration_of
from tests.service.metadata.records import configured, new_topic, topic_id
from tests.support.clock import SeededRng


def new(name: str, identity: int, partitions: int = 1) -> CreateTopic:
    return CreateTopic(NewTopic(name, partitions, 1), topic_id(identity))


async def ready(*brokers: Following) -> None:
    for each in brokers:
        await until(lambda: not each.remote.fenced)  # noqa: B023


async def test_brokers_see_each_other_and_their_partitions_are_spread(tmp_path: Path) -> None:
    async with (
        controlling(tmp_path) as controller,
        following(controller.address, 1) as one,
        following(controller.address, 2) as two,
    ):
        await ready(one, two)
        made = await one.remote.execute(new("t", 1, 4))
        assert (made.topic_id, made.partitions) == (topic_id(1), 4)
        topic = one.follower.image.topics[topic_id(1)]
        assert sorted(placed.leader for placed in topic.partitions) == [1, 1, 2, 2], "the caller's image has the change"
        await until(lambda: two.follower.image == controller.metadata.image)
        with pytest.raises(TopicExists):
            await two.remote.execute(new("t", 2))
        assert two.follower.image.brokers[1].endpoints[0].port == 9001


async def test_the_end_of_a_broker_takes_its_leaderships_and_its_return_gives_them_back(tmp_path: Path) -> None:
    async with controlling(tmp_path, session_s=600.0) as controller, following(controller.address, 1) as one:
        async with following(controller.address, 2) as two:
            await ready(one, two)
            await one.remote.execute(new("t", 1, 2))
        await until(lambda: one.follower.image.brokers[2].fenced)  # its stream has ended; its session lasts ten minutes
        assert {p.leader for p in one.follower.image.topics[topic_id(1)].partitions} == {1, NO_LEADER}
        async with following(controller.address, 2, start=b"next") as two:
            await ready(two)
            assert two.remote.broker_epoch == 2
            await until(lambda: {p.leader for p in one.follower.image.topics[topic_id(1)].partitions} == {1, 2})


async def test_a_broker_that_is_not_ready_stays_fenced(tmp_path: Path) -> None:
    async with controlling(tmp_path) as controller, following(controller.address, 1) as one:
        one.beating.cancel()
        await one.remote.register(registration_of(1, b"again"), CLUSTER)
        stream = one.remote._stub.Heartbeat()
        await stream.write(pb.HeartbeatRequest(broker_id=1, broker_epoch=2))
        assert (await stream.read()).fenced
        await stream.write(pb.HeartbeatRequest(broker_id=1, broker_epoch=2, ready=True))
        assert not (await stream.read()).fenced
        stream.cancel()


async def test_a_command_waits_until_its_broker_is_unfenced(tmp_path: Path) -> None:
    async with controlling(tmp_path) as controller, following(controller.address, 1) as one:
        one.beating.cancel()
        await one.remote.register(registration_of(1, b"again"), CLUSTER)
        asking = asyncio.create_task(one.remote.execute(AllocateProducerIds(1)))
        again = asyncio.create_task(one.remote.run())
        assert (await asking).size == 1000
        again.cancel()


async def test_a_broker_confirms_the_answers_that_it_has(tmp_path: Path) -> None:
    async with controlling(tmp_path) as controller, following(controller.address, 1) as one:
        await ready(one)
        for _ in range(5):
            await one.remote.execute(AllocateProducerIds(1))
        assert list(controller.metadata.image.sessions[1].results) == [4]


async def test_a_directory_of_another_cluster_does_not_join(tmp_path: Path) -> None:
    async with controlling(tmp_path) as controller:
        joining = ClusterMembership(
            controller.address, 1, "another", str(tmp_path), files=OsFiles(), clock=SystemClock(), rng=SeededRng(1)
        )
        with pytest.raises(WrongCluster, match="give the broker the address of its own controller"):
            await joining.joined()
        await joining.close()


async def test_a_broker_joins_with_all_that_its_controller_has(tmp_path: Path) -> None:
    """The start of a broker needs the metadata: whether the cluster has a store, and which partitions the broker
    leads."""
    async with controlling(tmp_path) as controller:
        for _ in range(50):
            await controller.controller.execute(SkipProducerIds())
        joining = ClusterMembership(
            controller.address, 1, CLUSTER, str(tmp_path), files=OsFiles(), clock=SystemClock(), rng=SeededRng(1)
        )
        await joining.joined()
        assert joining.metadata.last_index == controller.metadata.last_index
        await joining.close()


async def test_a_broker_with_another_disk_waits_until_its_dead_predecessor_is_fenced(tmp_path: Path) -> None:
    async with controlling(tmp_path) as controller, following(controller.address, 1) as one:
        await ready(one)
        async with AsyncExitStack() as stack:
            starting = asyncio.create_task(
                stack.enter_async_context(following(controller.address, 1, start=b"next", disk=b"another"))
            )
            await asyncio.sleep(0)  # the second start asks while the first one lives
            one.beating.cancel()
            two = await starting
            assert two.remote.broker_epoch == 2


async def test_a_silent_broker_is_fenced_while_its_stream_is_open(tmp_path: Path) -> None:
    """A process that is stopped between two heartbeats keeps its stream open."""
    async with controlling(tmp_path, session_s=0.5) as controller, following(controller.address, 1) as one:
        one.beating.cancel()
        beat = pb.HeartbeatRequest(broker_id=1, broker_epoch=1, ready=True)
        stream = one.remote._stub.Heartbeat()
        await stream.write(beat)
        assert not (await stream.read()).fenced
        await until(lambda: controller.metadata.image.brokers[1].fenced)
        await stream.write(beat)
        assert not (await stream.read()).fenced, "the stream continues after the pause"
        stream.cancel()


async def test_a_broker_that_stops_leads_nothing_when_it_may_stop(tmp_path: Path) -> None:
    async with controlling(tmp_path) as controller, following(controller.address, 1) as one:
        await ready(one)
        await one.remote.execute(new("t", 1))
        await one.remote.stop(30.0)
        image = controller.metadata.image
        assert image.brokers[1].shutting_down
        assert image.topics[topic_id(1)].partitions[0].leader == NO_LEADER


async def test_a_controller_that_restarts_finds_its_brokers_and_their_commands(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        async with controlling(tmp_path) as controller:
            one = await stack.enter_async_context(following(controller.address, 1))
            await ready(one)
            await one.remote.execute(new("t", 1))
        asking = asyncio.create_task(one.remote.execute(new("u", 2)))
        await until(lambda: one.follower._troubles.ends("controller") is not None)
        assert not asking.done()
        assert list(one.follower.image.topic_ids) == ["t"], "the broker keeps what it knows"
        async with controlling(tmp_path, controller.port) as again:
            assert (await asking).topic_id == topic_id(2)
            assert one.follower.image == again.metadata.image
            assert again.metadata.image.brokers[1].broker_epoch == 1, "it is still registered"
            assert again.metadata.image.brokers[1].may_lead


async def test_metadata_of_a_controller_on_an_older_disk_is_not_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also not once its own entries have passed the broker's offset. The newest one is followed again."""
    async with AsyncExitStack() as stack:
        async with controlling(tmp_path / "one") as controller:
            one = await stack.enter_async_context(following(controller.address, 1))
            await ready(one)
            shutil.copytree(tmp_path / "one", tmp_path / "older")
            await one.remote.execute(new("t", 1))
            one.follower._snapshot.extend(new_topic("half", 9))  # of a stream that broke in a snapshot's middle
            known = one.follower.image
            assert one.follower.trouble is None
        await until(lambda: controller.address in (one.follower.trouble or ""))
        async with controlling(tmp_path / "older", controller.port) as older:
            await until(lambda: one.follower.is_ahead)
            assert "the controller's metadata lacks entry" in (one.follower.trouble or "")
            for _ in range(9):
                await older.controller.execute(SkipProducerIds())
            with pytest.raises(
                RequestTimedOut, match="older data directory; nothing was changed, retry once it runs on"
            ):
                await one.remote.execute(new("u", 2))
            assert one.follower.image is known
            assert not older.metadata.image.topics
        async with controlling(tmp_path / "one", controller.port) as again:
            await again.controller.execute(SkipProducerIds())  # each start of a node with a controller has an entry
            await until(lambda: not one.follower.is_ahead)
            assert one.follower.trouble is None
            await one.remote.execute(new("u", 2))
            assert one.follower.image == again.metadata.image
            assert sorted(one.follower.image.topic_ids) == ["t", "u"]
    assert caplog.text.count("controller.went_back") == 1


async def test_a_follower_that_is_far_behind_gets_a_snapshot(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with controlling(tmp_path) as controller:
        async with following(controller.address, 1) as one:
            await ready(one)
            await one.remote.execute(new("t", 1))
            value = "x" * (MAX_RECENT_BYTES // 4)
            for number in range(8):
                await controller.metadata.propose([configured("t", f"k{number}", value)])
            await until(lambda: one.follower.image == controller.metadata.image)
        async with following(controller.address, 2) as two:
            assert controller.metadata.recent.after(0, 0) is None
            await until(lambda: two.follower.image == controller.metadata.image)
            await ready(two)
    assert "controller.went_back" not in caplog.text


@pytest.mark.parametrize(
    ("call", "request_of", "error"),
    [
        ("Register", lambda: _registering(cluster_id="another"), WrongCluster),
        ("Register", lambda: _registering(disk=b"another disk"), DuplicateBroker),
        ("Register", lambda: pb.RegisterRequest(command=encode_command(ForgetTopic(topic_id(1)))), InvalidRequest),
        ("Register", lambda: pb.RegisterRequest(command=b"\xff"), InvalidRequest),
        ("Execute", lambda: _executing(broker_epoch=7), StaleBrokerEpoch),
        ("Execute", lambda: _executing(broker_id=9), BrokerNotRegistered),
        ("Execute", lambda: _executing(count=MAX_COMMANDS_OF_A_CALL + 1), InvalidRequest),
    ],
)
async def test_wrong_requests_are_refused_and_change_nothing(
    tmp_path: Path,
    call: str,
    request_of: Callable[[], object],
    error: type[Exception],
) -> None:
    async with controlling(tmp_path) as controller, following(controller.address, 1) as one:
        await ready(one)
        before = controller.metadata.image
        with pytest.raises(error):
            await answered(getattr(one.remote._stub, call)(request_of()), controller.address)
        assert controller.metadata.image is before


def _registering(cluster_id: str = "", disk: bytes = b"") -> pb.RegisterRequest:
    return pb.RegisterRequest(cluster_id=cluster_id, command=encode_command(registration_of(1, b"other", disk)))


def _executing(broker_id: int = 1, broker_epoch: int = 1, count: int = 1) -> pb.ExecuteRequest:
    command = encode_command(AllocateProducerIds(1))
    commands = [pb.NumberedCommand(sequence=100 + each, command=command) for each in range(count)]
    return pb.ExecuteRequest(broker_id=broker_id, broker_epoch=broker_epoch, commands=commands)


async def test_a_broker_finds_its_own_controller_after_another_ones_refusal(tmp_path: Path) -> None:
    async with controlling(tmp_path) as controller:
        with pytest.raises(WrongCluster, match="give the broker the address of its own controller"):
            async with following(controller.address, 1, cluster_id="another"):
                pass
        async with following(controller.address, 1) as one:
            await ready(one)


async def test_a_heartbeat_stream_belongs_to_one_registration(tmp_path: Path) -> None:
    async with (
        controlling(tmp_path) as controller,
        following(controller.address, 1) as one,
        following(controller.address, 2) as two,
    ):
        await ready(one, two)
        stream = one.remote._stub.Heartbeat()
        await stream.write(pb.HeartbeatRequest(broker_id=1, broker_epoch=1, ready=True))
        await stream.read()
        await stream.write(pb.HeartbeatRequest(broker_id=2, broker_epoch=1, ready=True))
        with pytest.raises(InvalidRequest, match="open another"):
            await answered(stream.read(), controller.address)
        another = one.remote._stub.Heartbeat()
        await another.write(pb.HeartbeatRequest(broker_id=2, broker_epoch=1, ready=True))
        assert not (await another.read()).fenced
        another.cancel()


async def test_a_broker_that_learns_late_of_its_change_returns_a_retriable_error(tmp_path: Path) -> None:
    async with controlling(tmp_path) as controller, following(controller.address, 1) as one:
        await ready(one)
        offset = controller.metadata.last_index + 1
        with pytest.raises(RequestTimedOut, match="retry to see it"):
            await one.follower.reach(offset, 0.0)
        await one.remote.execute(new("t", 1))
        await one.follower.reach(offset, SESSION_S)


async def test_a_request_beyond_the_bound_is_refused_and_the_others_are_served(tmp_path: Path) -> None:
    async with controlling(tmp_path) as controller, following(controller.address, 1) as one:
        await ready(one)
        large = CreateTopic(NewTopic("t", 1, 1, {"retention.ms": "1" * MAX_REQUEST_BYTES}), topic_id(1))
        with pytest.raises(LogError, match=r"larger than max|RESOURCE_EXHAUSTED"):
            await one.remote.execute(large)
        many = CreateTopic(NewTopic("many", assignments=dict.fromkeys(range(10000), (1,))), topic_id(2))
        assert (await one.remote.execute(many)).partitions == 10_000


async def test_a_taken_address_is_named(tmp_path: Path) -> None:
    async with controlling(tmp_path / "one") as controller:
        with pytest.raises(InvalidConfig, match="or choose another address"):
            async with controlling(tmp_path / "two", controller.port):
                pass
        async with controlling(tmp_path / "two") as second:
            assert second.port != controller.port


async def test_another_listener_of_the_controllers_node_is_named() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    address = f"127.0.0.1:{port}"
    channel = NodeChannel(open_channel(address), address, SystemClock(), SeededRng(1))
    try:
        with pytest.raises(UnsupportedVersion, match="is not a controller's listener; give the controller_listener"):
            await asyncio.wait_for(MetadataFollower(channel, CLUSTER).run(), SESSION_S)
    finally:
        await channel.channel.close()
        await server.stop(None)


async def test_a_second_start_of_the_same_disk_ends_the_first(tmp_path: Path) -> None:
    async with controlling(tmp_path) as controller, following(controller.address, 1) as first:
        await ready(first)
        async with following(controller.address, 1, start=b"second") as second:
            await ready(second)
            with pytest.raises(StaleBrokerEpoch, match="a newer start has registered"):
                await asyncio.wait_for(first.beating, SESSION_S)
            with pytest.raises(StaleBrokerEpoch):
                await first.remote.execute(new("t", 1))
            await second.remote.execute(new("t", 1))


async def test_a_broker_that_is_cancelled_beside_an_answer_ends(tmp_path: Path) -> None:
    """The answer to a heartbeat and the end of the broker meet in one turn of the loop."""
    async with controlling(tmp_path) as controller, following(controller.address, 1) as one:
        await ready(one)
        one.beating.cancel()
        arrived: list[asyncio.Future[pb.HeartbeatReply]] = []

        class Stream:
            async def write(self, _: pb.HeartbeatRequest) -> None:
                pass

            def read(self) -> asyncio.Future[pb.HeartbeatReply]:
                arrived.append(asyncio.get_running_loop().create_future())
                return arrived[-1]

            def cancel(self) -> None:
                pass

        one.remote._stub.Heartbeat = Stream
        beating = asyncio.create_task(one.remote.run())
        await until(lambda: bool(arrived))
        arrived[0].set_result(pb.HeartbeatReply())
        beating.cancel()
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(SESSION_S):
                await beating


class Beats:
    """A heartbeat stream that gives these answers in turn; None fails as if the controller were away."""

    def __init__(self, answers: list[pb.HeartbeatReply | None]) -> None:
        self._answers = answers

    async def write(self, _: pb.HeartbeatRequest) -> None:
        pass

    async def read(self) -> pb.HeartbeatReply:
        answer = self._answers.pop(0) if self._answers else None
        if answer is None:
            raise AioRpcError(StatusCode.UNAVAILABLE, Metadata(), Metadata())
        return answer

    def cancel(self) -> None:
        pass


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param([pb.HeartbeatReply()], id="the controller answers"),
        pytest.param([pb.HeartbeatReply(fenced=True)], id="it has just been fenced, and is heard again"),
        pytest.param([None], id="the controller is away"),
    ],
)
async def test_the_lease_lasts_while_the_controller_answers_or_is_away(
    tmp_path: Path, answers: list[pb.HeartbeatReply | None]
) -> None:
    async with controlling(tmp_path) as controller, following(controller.address, 1) as one:
        one.beating.cancel()
        one.remote.lease.until_ms = 0
        one.remote._stub.Heartbeat = lambda: Beats(answers)
        again = asyncio.create_task(one.remote.run())
        await until(lambda: one.remote.lease.until_ms > 0)
        again.cancel()


async def test_the_end_of_a_stream_with_answers_does_not_extend_the_lease(tmp_path: Path) -> None:
    """The stream of a paused process ends when the process continues; the next stream says whether the broker has a
    successor."""
    async with controlling(tmp_path) as controller, following(controller.address, 1) as one:
        one.beating.cancel()
        one.remote._stub.Heartbeat = lambda: Beats([pb.HeartbeatReply()])
        with pytest.raises(AioRpcError):
            await one.remote._beat(Backoff(RETRYING, SeededRng(1)))  # one answer, then the end
        one.remote.lease.until_ms = 0
        one.remote._unanswered_beat()
        assert one.remote.lease.until_ms == 0
