"""The metrics of groups, transactions and what they hold back, and the work that changes them."""

from __future__ import annotations

from collections.abc import AsyncIterator

from tests.service.broker.support import TIERED
from tests.service.broker.test_transactions import T0, Client, write
from tests.service.observability.world import Is, World, work

COORDINATORS = {"offsets_topic_num_partitions": "1", "transaction_state_log_num_partitions": "1"}


# --- offloads that are held back ---------------------------------------------------------------------------------------
@work(
    {
        'tidelog_tier_offload_held_back_bytes{topic="t",partition="0",producer_id="0"}': Is(3 * 999 + 120),
        "tidelog_tier_offload_held_back_partitions": 1,
    },
    **COORDINATORS,
)
async def a_transaction_holds_offloads_back(world: World) -> AsyncIterator[None]:
    await world.create("t", configs=TIERED)
    client = await Client(world.node).begin()
    await client.add(T0)
    write(world.node, T0, client.producer)
    yield
    for number in range(5):
        await world.node.append("t", b"%d" % number * 928)
    yield


@work({"tidelog_tier_offload_held_back_partitions": -1}, **COORDINATORS)
async def a_transaction_that_held_offloads_back_ends(world: World) -> AsyncIterator[None]:
    await world.create("t", configs=TIERED)
    client = await Client(world.node).begin()
    await client.add(T0)
    write(world.node, T0, client.producer)
    for number in range(5):
        await world.node.append("t", b"%d" % number * 928)
    yield
    assert await client.end(commit=True) is None
    await client.reaches("CompleteCommit")
    yield
