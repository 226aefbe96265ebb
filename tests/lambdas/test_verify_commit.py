"""Despite duplicates, losses, reordering, deaths and rivals, each live segment is recorded once, in commit order."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lambdas.environment import read_settings
from lambdas.verify_commit import Verifier
from storage_tiers.cold.manifest import keys
from storage_tiers.cold.offline.commit_cursor import advance_cursor, read_cursor
from storage_tiers.cold.stores.memory import BlockingMemoryStore
from storage_tiers.cold.stores.port import FileBody, ObjectBody, ObjectInfo, UnfinishedUpload
from storage_tiers.errors import InvalidConfig, PreconditionFailed, TierCorrupt, TierUnavailable
from tests.lambdas.support import LOCATION, READER, Context, World, hint, notification
from tests.storage_tiers.cold.support import DAY, IDS, stored_live, stored_manifest
from tests.support.clock import SeededRng


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


class Dying(BlockingMemoryStore):
    """A store whose n-th call fails, before or after it takes effect."""

    def __init__(self, store: BlockingMemoryStore, dies_at: int, after: bool) -> None:
        self.__dict__.update(store.__dict__)
        self._store, self._left, self._after = store, dies_at, after

    def _call(self, work: Callable[[], object]) -> object:
        self._left -= 1
        if self._left == 0 and not self._after:
            raise TierUnavailable("died before the call")
        try:
            return work()
        finally:
            if self._left == 0:
                raise TierUnavailable("died after the call")

    @property
    def died(self) -> bool:
        return self._left <= 0

    def put(
        self, key: str, body: bytes | FileBody, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        done = self._call(lambda: self._store.put(key, body, if_absent=if_absent, if_match=if_match))
        assert isinstance(done, ObjectInfo)
        return done

    def get(self, key: str, start: int = 0, length: int | None = None) -> ObjectBody:
        done = self._call(lambda: self._store.get(key, start, length))
        assert isinstance(done, ObjectBody)
        return done

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        raise AssertionError("the handler lists nothing")

    def unfinished_uploads(self, prefix: str) -> Iterator[UnfinishedUpload]:
        raise AssertionError("the handler lists nothing")


async def test_each_commit_triggers_a_check_of_its_segments(world: World) -> None:
    for number in range(3):
        await world.extend()
        assert world.wake() == []
        assert world.verdicts()[number:] == [(number + 1, number * 10, "sound")]
        assert world.cursor() == number + 1
    (info, *_) = world.store.list(f"{IDS.cluster_id}/readers/{READER}/verdicts/")
    found = json.loads(world.store.get(info.key).data)
    assert (found["base"], found["end"], found["batches"], found["records"]) == (0, 10, 10, 10)
    assert found["segment"] == stored_manifest(world.store).segments[0].key


async def test_duplicates_do_nothing_twice(world: World) -> None:
    await world.extend()
    assert world.wake(hint(), hint(), hint()) == []
    before = {info.key: info.etag for info in world.store.list("")}
    assert world.wake(hint()) == []
    assert {info.key: info.etag for info in world.store.list("")} == before


async def test_lost_and_reordered_hints_change_nothing(world: World) -> None:
    hints = []
    for _ in range(4):
        await world.extend()
        hints.append(hint())
    assert world.wake(hints[3], hints[0]) == []  # two are lost, two arrive in the wrong order
    assert world.verdicts() == [(1, 0, "sound"), (2, 10, "sound"), (3, 20, "sound"), (4, 30, "sound")]
    assert world.cursor() == 4


async def test_segments_moved_from_the_manifest_to_a_page_are_found(world: World) -> None:
    for _ in range(200):
        await world.extend(1)
    assert stored_manifest(world.store).live_pages
    assert world.wake() == []
    assert [base for _, base, _ in world.verdicts()] == list(range(200))


async def test_commits_that_add_nothing_move_the_cursor(world: World) -> None:
    await world.extend()
    await world.tier.raise_log_start(5)
    assert world.wake() == []
    assert (world.cursor(), len(world.verdicts())) == (2, 1)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_death_at_any_call_is_recovered_from(tmp_path: Path, after: bool) -> None:
    for dies_at in range(1, 200):
        directory = tmp_path / str(dies_at)
        directory.mkdir()
        world = World(directory)
        for _ in range(3):
            await world.extend()
        store = Dying(world.store, dies_at, after)
        failed = world.wake(store=store)
        if not store.died:
            break
        assert failed == ["m0"]
        assert world.cursor() in (None, 1, 2, 3)
        assert len(world.verdicts()) in ((world.cursor() or 0), (world.cursor() or 0) + 1), (
            "no cursor passes its verdict"
        )
        assert world.wake() == []
        assert (world.verdicts(), world.cursor()) == ([(1, 0, "sound"), (2, 10, "sound"), (3, 20, "sound")], 3)
    assert dies_at == 3 * 4 + 2 + 2 + 1, (
        "cursor and manifest twice; sidecar, segment, verdict and cursor of each segment"
    )


async def test_two_handlers_at_once_record_once(world: World) -> None:
    """A rival handler runs from start to end before the first one's fourth store call."""
    for _ in range(3):
        await world.extend()

    class Overtaken(Dying):
        def _call(self, work: Callable[[], object]) -> object:
            if self._left == -3:
                assert world.wake() == []
            return super()._call(work)

    store = Overtaken(world.store, 0, False)
    assert world.wake(store=store) == []
    assert (world.verdicts(), world.cursor()) == ([(1, 0, "sound"), (2, 10, "sound"), (3, 20, "sound")], 3)


async def test_a_cursor_is_advanced_by_only_one_of_two_handlers(world: World) -> None:
    await world.extend()
    cursor = read_cursor(world.store, IDS, READER)
    first = advance_cursor(world.store, cursor, 1, writer="a", now_ms=1)
    with pytest.raises(PreconditionFailed):
        advance_cursor(world.store, cursor, 1, writer="b", now_ms=1)
    advance_cursor(world.store, first, 2, writer="a", now_ms=1)
    with pytest.raises(PreconditionFailed):
        advance_cursor(world.store, first, 3, writer="b", now_ms=1)
    with pytest.raises(ValueError, match="cannot go back"):
        advance_cursor(world.store, first, 1, writer="a", now_ms=1)
    assert read_cursor(world.store, IDS, READER).commit == 2


async def test_a_damaged_segment_is_named_and_the_next_is_checked(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        await world.extend()
    segment = stored_manifest(world.store).segments[1]
    data = bytearray(world.store.get(segment.key).data)
    data[100] ^= 1
    world.store.put(segment.key, bytes(data))
    with caplog.at_level("INFO"):
        assert world.wake() == []
    assert [verdict for _, _, verdict in world.verdicts()] == ["sound", "damaged", "sound"]
    (line,) = [json.loads(record.message) for record in caplog.records if '"damaged"' in record.message]
    assert line["base"] == 10
    assert "bytes differ from their checksum" in line["findings"][0]
    assert segment.key in line["findings"][0]


async def test_a_missing_object_is_damage_only_while_it_is_named(world: World) -> None:
    for _ in range(2):
        await world.extend()
    first, second = stored_live(world.store, stored_manifest(world.store))
    world.store.delete([first.key])
    assert world.wake() == []
    assert [verdict for _, _, verdict in world.verdicts()] == ["damaged", "sound"]

    await world.extend()
    planned = stored_manifest(world.store)
    stale = planned.segments[-1]

    class Swept(Dying):
        def get(self, key: str, start: int = 0, length: int | None = None) -> ObjectBody:
            if key == stale.sidecar_key:
                world.store.delete([stale.key, stale.sidecar_key])
                world.store.put(IDS.manifest_key, without_last_segment())
            return super().get(key, start, length)

    def without_last_segment() -> bytes:
        from dataclasses import replace

        from storage_tiers.cold.manifest.json import encode
        from storage_tiers.cold.manifest.model import CommitId, Removed, Stamp

        commit = planned.commit + 1
        return encode(
            replace(
                planned,
                commit=commit,
                recent=(*planned.recent, CommitId(commit, "f" * 32)),
                log_start=planned.end,
                segments=(),
                removed=tuple(Removed(Stamp(commit, 1), segment) for segment in planned.segments),
            )
        )

    assert world.wake(store=Swept(world.store, 0, False)) == []
    assert len(world.verdicts()) == 2, "the segment removed meanwhile has no verdict"
    assert world.cursor() == planned.commit + 1
    assert second.base == 10


async def test_a_cursor_older_than_the_grace_reports_a_possible_gap(world: World) -> None:
    await world.extend()
    assert world.wake() == []
    for _ in range(3):
        await world.extend()
    await world.tier.expire(30)
    world.clock.advance(3 * DAY / 1000)
    await world.tier.sweep(DAY)
    await world.tier.sweep(DAY)
    manifest = stored_manifest(world.store)
    assert manifest.swept > 1
    assert world.wake() == []
    (key,) = [info.key for info in world.store.list(f"{IDS.cluster_id}/readers/{READER}/missed/")]
    assert keys.parse(key) == keys.MissedKey(
        IDS.cluster_id, READER, IDS.topic, IDS.topic_id, IDS.partition, 1, manifest.swept
    )
    assert world.verdicts() == [(1, 0, "sound"), (4, 30, "sound")]
    assert world.wake() == []
    assert world.cursor() == manifest.commit


async def test_a_reader_that_begins_after_a_sweep_records_no_gap(world: World) -> None:
    for _ in range(3):
        await world.extend()
    await world.tier.expire(20)
    world.clock.advance(3 * DAY / 1000)
    await world.tier.sweep(DAY)
    await world.tier.sweep(DAY)
    assert world.wake() == []
    assert list(world.store.list(f"{IDS.cluster_id}/readers/{READER}/missed/")) == []
    assert world.verdicts() == [(3, 20, "sound")]


async def test_a_deleted_partition_ends_at_its_last_commit(world: World) -> None:
    await world.extend()
    await world.tier.delete_partition()
    assert world.wake() == []
    assert (world.cursor(), world.verdicts()) == (world.commit(), [])


async def test_a_message_out_of_time_stays_queued_and_the_next_continues(world: World) -> None:
    for _ in range(3):
        await world.extend()
    assert world.wake(context=Context([900_000, 900_000, 59_000])) == ["m0"]
    assert (world.cursor(), len(world.verdicts())) == (2, 2)
    assert world.wake() == []
    assert (world.cursor(), len(world.verdicts())) == (3, 3)


@pytest.mark.parametrize(
    "body",
    ["not json", "[]", '{"Records": [{}]}', notification("live/x", bucket="another"), "null"],
    ids=["text", "list", "no-s3", "other-bucket", "null"],
)
async def test_an_invalid_message_goes_to_the_dead_letter_queue(world: World, body: str) -> None:
    await world.extend()
    assert world.wake(body, hint()) == ["m0"]
    assert world.cursor() == 1


@pytest.mark.parametrize(
    "body",
    [
        '{"Event": "s3:TestEvent", "Bucket": "history"}',
        notification(f"live/{keys.topic_file_key(IDS.cluster_id, IDS.topic)}"),
        notification(f"elsewhere/{IDS.manifest_key}"),
        notification("live/notes.txt"),
        notification(f"live/{keys.key(keys.ManifestKey(IDS.cluster_id, 'never', IDS.topic_id, 0))}"),
    ],
    ids=["test-event", "topic-file", "other-prefix", "foreign", "no-such-manifest"],
)
async def test_objects_that_are_not_manifests_are_skipped(world: World, body: str) -> None:
    await world.extend()
    assert world.wake(body) == []
    assert world.cursor() is None


async def test_a_bad_cursor_is_refused_and_left_alone(world: World) -> None:
    await world.extend()
    key = keys.key(keys.CursorKey(IDS.cluster_id, READER, IDS.topic, IDS.topic_id, IDS.partition))
    other = keys.key(keys.CursorKey(IDS.cluster_id, "other", IDS.topic, IDS.topic_id, IDS.partition))
    Verifier(world.store, "other", world.clock, SeededRng(1), lambda: 900_000).catch_up(IDS)
    for damage in (b"{", world.store.get(other).data):
        world.store.put(key, damage)
        with pytest.raises(TierCorrupt, match=READER):
            read_cursor(world.store, IDS, READER)
        assert world.wake() == ["m0"]
        assert world.store.get(key).data == damage


def test_an_event_that_is_not_a_batch_names_the_fault(world: World) -> None:
    from lambdas.notifications import messages

    with pytest.raises(ValueError, match="connect the function to the queue"):
        messages({"Records": [{"s3": {}}]}, LOCATION)


@pytest.mark.parametrize("url", ["", "file:///tmp/x", "memory://x"])
def test_the_error_names_the_missing_settings(url: str) -> None:
    with pytest.raises(InvalidConfig, match="TIDELOG_STORE"):
        read_settings({"TIDELOG_STORE": url})
    found = read_settings({"TIDELOG_STORE": "s3://history/live", "TIDELOG_READER": "mine"})
    assert (found.location, found.reader) == (LOCATION, "mine")
