"""Recent entries are found by the position before them; a position that is too old or of another log is not found."""

from __future__ import annotations

from service.metadata.recent import MAX_RECENT_BYTES, Entry, RecentEntries


def kept(entries: list[Entry], base: tuple[int, int] = (4, 1)) -> RecentEntries:
    recent = RecentEntries(*base)
    for entry in entries:
        recent.add(entry)
    return recent


SIX = [Entry(5, 2, b"a"), Entry(6, 2, b"b"), Entry(7, 3, b"c")]


def test_entries_follow_the_position_that_a_reader_has() -> None:
    recent = kept(SIX)
    assert recent.after(4, 1) == SIX
    assert recent.after(5, 2) == SIX[1:]
    assert recent.after(7, 3) == []
    assert recent.end == (7, 3)
    assert kept([]).after(4, 1) == []
    assert kept([]).end == (4, 1)


def test_a_position_of_another_log_is_not_found() -> None:
    recent = kept(SIX)
    for offset, term in ((4, 2), (5, 1), (7, 2), (8, 3), (3, 1), (0, 0), (-1, 1)):
        assert recent.after(offset, term) is None


def test_old_entries_make_room_and_the_newest_stays() -> None:
    large = bytes(MAX_RECENT_BYTES // 2)
    recent = kept([Entry(5, 2, large), Entry(6, 2, large), Entry(7, 2, b"x")])
    assert recent.after(4, 1) is None
    assert [entry.offset for entry in recent.after(5, 2) or ()] == [6, 7]
    recent.add(Entry(8, 2, bytes(MAX_RECENT_BYTES + 1)))
    assert [entry.offset for entry in recent.after(7, 2) or ()] == [8]
    assert recent.after(6, 2) is None
