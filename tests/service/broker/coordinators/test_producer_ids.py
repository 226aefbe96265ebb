"""Producer ids come only from the blocks that the node has reserved."""

from __future__ import annotations

import asyncio

from service.broker.coordinators.producer_ids import ProducerIds
from service.metadata.commands import ProducerIdBlock

COUNT = 3


class Blocks:
    """Reserves [0, 3), [100, 103) and so on; the ids in between belong to other nodes."""

    def __init__(self) -> None:
        self.reserved = 0

    async def reserve(self) -> ProducerIdBlock:
        await asyncio.sleep(0)
        first = self.reserved * 100
        self.reserved += 1
        return ProducerIdBlock(first, COUNT)

    @property
    def ids(self) -> list[int]:
        return [block * 100 + at for block in range(self.reserved) for at in range(COUNT)]


async def test_a_block_is_given_to_its_end_and_no_further() -> None:
    blocks = Blocks()
    ids = ProducerIds(blocks.reserve)
    given = [await ids.next() for _ in range(3 * COUNT)]
    assert given == blocks.ids == [0, 1, 2, 100, 101, 102, 200, 201, 202]


async def test_concurrent_requests_share_the_blocks_of_ids() -> None:
    blocks = Blocks()
    ids = ProducerIds(blocks.reserve)
    given = await asyncio.gather(*(ids.next() for _ in range(4 * COUNT)))
    assert sorted(given) == blocks.ids
    assert blocks.reserved == 4
