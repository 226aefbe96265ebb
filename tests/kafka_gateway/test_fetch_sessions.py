"""Which session evicts which, as in Kafka's FetchSessionTest, and the bounds of the session cache."""

from __future__ import annotations

import pytest

from grpc_api.contract.log import Fetched, FetchPartition
from kafka_gateway.fetch_sessions import EVICTION_MS, CachedPartition, FetchContext, FetchSessionCache, next_epoch
from kafka_gateway.hot_parse import FetchRequest
from storage_tiers.types import TopicPartition
from tests.support.clock import SeededRng

NOT_FOUND, WRONG_EPOCH = 70, 71


def cached(index: int) -> CachedPartition:
    return CachedPartition(b"topic", index, FetchPartition(TopicPartition("topic", index), 0, 1))


def create(cache: FetchSessionCache, size: int, now_ms: float = 0) -> int:
    return cache.create([(cached(index), Fetched(None, 0, 0, 0)) for index in range(size)], by_id=False, now_ms=now_ms)


def ask(session_id: int, epoch: int, indexes: tuple[int, ...] = (), forget: tuple[int, ...] = ()) -> FetchRequest:
    request = FetchRequest()
    request.session_id, request.session_epoch = session_id, epoch
    request.topics, request.indexes = [(b"topic", len(indexes))] if indexes else [], list(indexes)
    request.partitions = [cached(index).wanted for index in indexes]
    request.forgotten = [(b"topic", index) for index in forget]
    return request


def use(cache: FetchSessionCache, session_id: int, epoch: int, now_ms: float) -> bool:
    return isinstance(cache.begin(ask(session_id, epoch), 12, now_ms), FetchContext)


def cache_of(slots: int, most_partitions: int = 1000) -> FetchSessionCache:
    return FetchSessionCache(SeededRng(1).token, slots=slots, most_partitions=most_partitions)


def test_ids_are_positive_and_differ() -> None:
    given = iter([bytes(4), b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\5"])
    cache = FetchSessionCache(lambda count: next(given))
    assert [create(cache, 1), create(cache, 1)] == [2**31 - 1, 5]


def test_session_epochs_wrap_around() -> None:
    assert [next_epoch(0), next_epoch(1), next_epoch(2**31 - 1)] == [1, 2, 1]


def test_without_room_no_session_is_created() -> None:
    cache = cache_of(2)
    first, second = create(cache, 2), create(cache, 3)
    assert first and second
    assert create(cache, 100, EVICTION_MS) == 0, "no session is old enough"
    assert len(cache) == 2 and cache.evictions == 0


def test_the_stalest_session_is_evicted_first() -> None:
    cache = cache_of(2)
    first, second = create(cache, 2), create(cache, 3)
    assert use(cache, first, 1, 10)
    assert create(cache, 1, EVICTION_MS + 1), "the second was unused for longer than two minutes"
    assert use(cache, first, 2, EVICTION_MS + 2)
    assert not use(cache, second, 1, EVICTION_MS + 2)
    assert cache.evictions == 1


def test_a_larger_session_evicts_the_smallest_old_one() -> None:
    cache = cache_of(2)
    first, second = create(cache, 2), create(cache, 3)
    now = EVICTION_MS + 1
    assert use(cache, first, 1, now) and use(cache, second, 1, now)
    assert create(cache, 1, now) == create(cache, 2, now) == 0, "among equals the existing one stays"
    assert create(cache, 3, now)
    assert not use(cache, first, 2, now)
    assert use(cache, second, 2, now)


def test_sessions_created_or_used_within_two_minutes_stay() -> None:
    cache = cache_of(1)
    only = create(cache, 1)
    assert use(cache, only, 1, EVICTION_MS)
    assert create(cache, 50, EVICTION_MS + 10) == 0
    assert use(cache, only, 2, EVICTION_MS + 1)
    assert create(cache, 50, EVICTION_MS + 10)


def test_partitions_are_counted_as_sessions_grow_and_end() -> None:
    cache = cache_of(10)
    session = create(cache, 5)
    assert isinstance(cache.begin(ask(session, 1, (5, 6), (0,)), 12, 0), FetchContext)
    assert cache.partitions == 6
    assert isinstance(cache.begin(ask(session, 2, (), (1, 2, 3, 4, 5, 6)), 12, 0), FetchContext)
    assert (cache.partitions, len(cache)) == (0, 0)


def test_partitions_of_all_sessions_are_bounded() -> None:
    cache = cache_of(10, most_partitions=10)
    first = create(cache, 6)
    assert create(cache, 5) == 0
    assert create(cache, 4)
    assert cache.begin(ask(first, 1, (9,)), 12, 0) == NOT_FOUND
    assert (cache.partitions, len(cache)) == (4, 1)


def test_with_zero_slots_no_session_is_created() -> None:
    assert create(cache_of(0), 1) == 0


@pytest.mark.parametrize("epoch", [0, 2, -2, 2**31 - 1])
def test_a_wrong_epoch_changes_nothing(epoch: int) -> None:
    cache = cache_of(10)
    session = create(cache, 2)
    answer = cache.begin(ask(session, epoch, (7,), (0,)), 12, 0)
    if epoch == 0:
        assert isinstance(answer, FetchContext), "a full request ends the session"
        assert cache.begin(ask(session, 1), 12, 0) == NOT_FOUND
        return
    assert answer == WRONG_EPOCH
    context = cache.begin(ask(session, 1), 12, 0)
    assert isinstance(context, FetchContext)
    assert [each.index for each in context.partitions] == [0, 1]
