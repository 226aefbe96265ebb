"""Moves with restarts in between, and metadata that reaches a broker late: losses are neither invented nor forgotten, and every
offset is assigned once."""

from __future__ import annotations

import shutil
from pathlib import Path

from grpc_api.contract.groups import OffsetFetch
from grpc_api.contract.topics import NewTopic
from service.broker.partition.phase import Phase
from service.broker.partition.record_loss import RecoveredEnd
from service.controller.follower import changes_between
from service.metadata import reassignments
from service.metadata.commands import FenceBroker, HandOver, RegisterBroker, UnfenceBroker
from service.metadata.image import MetadataImage
from storage_tiers.clock import SystemClock
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.errors import StorageError, StoreBehind
from tests.service.broker.background.test_moving import KEY, LossyCommands, moving, placed, with_target
from tests.service.broker.coordinators.test_groups import CALLER, SETTINGS, commit, coordinated, offsets
from tests.service.broker.support import TIERED, Running, running, until
from tests.support.faulty_store import FaultyStore


async def register_second(node: Running) -> None:
    await node.node.configs.controller.execute(RegisterBroker(2, b"second", (), start_id=b"s"))


async def ticks(node: Running, count: int = 3) -> None:
    """Runs `count` rounds of the work that settles losses."""
    for _ in range(count):
        await node.node.broker.coordinators.recovered_offsets.tick()


async def test_a_target_that_starts_before_its_log_exists_has_lost_nothing(tmp_path: Path) -> None:
    """The group keeps its offset in the partition."""
    store = FaultyStore(MemoryStore(SystemClock()))
    async with running(tmp_path, store, broker=SETTINGS) as node:
        group = await coordinated(node, "g")  # before another broker could become its coordinator
        await register_second(node)
        await node.core.topics.create([NewTopic("t", -1, -1, TIERED, {0: [2]})])
        await commit(group, 42)
        await node.core.topics.reassign(KEY, [1])
        await until(lambda: (tmp_path / "t-0").exists())
    shutil.rmtree(tmp_path / "t-0")  # as if this broker had been down when the move began
    async with running(tmp_path, store, broker=SETTINGS) as node:
        assert node.node.broker.partitions.get(KEY).recovered_end is None
        group = await coordinated(node, "g")
        await ticks(node)
        assert offsets(await group.fetch_offsets(OffsetFetch("g", None), CALLER)) == {"t": [42]}


async def test_a_loss_is_noted_until_the_partition_leads(tmp_path: Path) -> None:
    """A started broker leads nothing at first, and has no coordinators."""
    async with running(tmp_path) as node:
        await node.create("t")
        led = node.node.broker.partitions.get(KEY)
        execute = node.node.configs.controller.execute
        await execute(FenceBroker(1, 1))
        await until(lambda: led.phase is Phase.FOLLOWING)
        led.recovered_end = end = RecoveredEnd(0)
        await ticks(node)
        assert led.recovered_end is end
        await execute(UnfenceBroker(1, 1))
        await until(lambda: led.phase is Phase.LEADING)
        await ticks(node)
        await until(lambda: led.recovered_end is None)


async def test_a_partition_that_left_and_came_back_unseen_is_compared_first(tmp_path: Path) -> None:
    """Both moves are in one image, as in a snapshot of the metadata."""
    async with running(tmp_path) as node:
        await with_target(node)
        await node.seal("t")
        await node.node.broker.moving.close()
        led, image = node.node.broker.partitions.get(KEY), node.node.ground.metadata.image
        led.hold()

        def moved(image: MetadataImage, source: int, target: int, end: int) -> MetadataImage:
            image = image.apply_batch(reassignments.reassign(image, "t", 0, [target], is_tiered=True))
            found = image.partition(*KEY)
            assert found is not None
            epochs = image.brokers[source].broker_epoch, found.leader_epoch, found.partition_epoch
            return image.apply_batch(reassignments.hand_over(image, led.topic_id, 0, source, *epochs, end))

        back = moved(moved(image, 1, 2, 10), 2, 1, 20)
        node.node.broker.assignment.apply(back, changes_between(image, back))
        assert led.is_recovering, "the bucket lacks the other leader's records"
        assert led.write_error is not None


async def test_a_former_leader_compares_its_new_log_if_the_metadata_have_forgotten_the_move(tmp_path: Path) -> None:
    """The controller's directory was replaced by a copy from before the move."""
    async with running(tmp_path) as node:
        await with_target(node)
        older = node.node.ground.metadata.image
        await moving(node)
        await until(lambda: placed(node).leader == 2)
        await until(lambda: not list(tmp_path.glob("t-0*")))
        assignment = node.node.broker.assignment
        assignment.apply(older, changes_between(node.node.ground.metadata.image, older))
        await until(lambda: node.node.broker.partitions.find(KEY) is not None)
        led = node.node.broker.partitions.get(KEY)
        await until(lambda: led.phase is not Phase.OPENING)
        assert led.is_recovering, "it does not begin at offset 0"
        node.node.work.tiering.kick(led)
        await until(lambda: led.phase is Phase.LEADING)
        assert [record.value for record in await node.read_all("t")] == [b"%d" % number for number in range(10)]
        appended = await node.append("t", b"next")
        assert appended.base_offset == 10


async def test_a_log_is_kept_while_the_bucket_shows_less_than_before(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await with_target(node)
        led = node.node.broker.partitions.get(KEY)
        commands = LossyCommands(node, (False, StorageError("the answer was lost")))
        await moving(node)
        await until(lambda: any(isinstance(each, HandOver) for each in commands.sent))
        node.node.work.tiering.lineage.begin(led, StoreBehind("commit 3 was seen, commit 1 is shown"))
        consent = next(each for each in commands.sent if isinstance(each, HandOver))
        await commands._inner.execute(consent)
        await until(lambda: node.node.broker.partitions.find(KEY) is None)
        await until(lambda: len(list(tmp_path.glob("t-0.*-stray"))) == 1)
        assert placed(node).leader == 2
