"""Committed offsets against a model that keeps every record: readers see committed records, decisions see written ones."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from service.coordination.group_records import CommittedOffset, encode_offset
from service.coordination.groups.committed_offsets import CommittedOffsets
from storage_tiers.types import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def offset(number: int) -> CommittedOffset:
    return CommittedOffset(number, -1, "", 0)


def record(number: int) -> bytes:
    return encode_offset(offset(number))


def test_readers_see_an_offset_once_its_record_is_committed() -> None:
    book = CommittedOffsets()
    book.write("g", A, record(5), 0)
    assert book.fetch("g", A) is None
    assert dict(book.newest("g")) == {A: offset(5)}
    book.commit_through(0)
    book.write("g", A, record(9), 1)
    assert book.fetch("g", A) == offset(5)
    book.commit_through(1)
    assert book.fetch("g", A) == offset(9)


def test_readers_see_whichever_of_two_pending_offsets_is_committed() -> None:
    book = CommittedOffsets()
    book.write("g", A, record(1), 0)
    book.write("g", A, record(2), 1)
    book.commit_through(0)
    assert (book.fetch("g", A), dict(book.newest("g"))) == (offset(1), {A: offset(2)})


def test_an_offset_of_a_transaction_counts_once_its_marker_is_committed() -> None:
    book = CommittedOffsets()
    book.write_in_transaction(7, "g", A, record(5), 0)
    book.commit_through(0)
    assert (book.fetch("g", A), book.is_unstable("g", A), dict(book.newest("g"))) == (None, True, {})
    book.end_transaction(7, commit=True, record_number=1)
    assert (book.fetch("g", A), book.is_unstable("g", A), book.is_open("g", A)) == (None, True, False)
    book.commit_through(1)
    assert (book.fetch("g", A), book.is_unstable("g", A)) == (offset(5), False)


def test_an_offset_is_stable_once_the_last_of_its_markers_is_committed() -> None:
    book = CommittedOffsets()
    for order, producer in enumerate((7, 8)):
        book.write_in_transaction(producer, "g", A, record(producer), order)
    book.end_transaction(7, commit=True, record_number=2)
    book.end_transaction(8, commit=False, record_number=3)
    seen = []
    for order in (1, 2, 3):
        book.commit_through(order)
        seen.append(book.is_unstable("g", A))
    assert seen == [True, True, False]


def test_an_aborted_transaction_leaves_nothing() -> None:
    book = CommittedOffsets()
    book.write_in_transaction(7, "g", A, record(5), 0)
    book.end_transaction(7, commit=False, record_number=1)
    book.commit_through(1)
    assert (book.fetch("g", A), book.is_unstable("g", A), book.groups()) == (None, False, set())


def test_a_commit_marker_does_not_replace_a_plain_commit_that_was_written_after_the_transactions() -> None:
    book = CommittedOffsets()
    book.write_in_transaction(7, "g", A, record(5), 0)
    book.write("g", A, record(9), 1)
    book.write_in_transaction(7, "g", B, record(6), 2)
    book.end_transaction(7, commit=True, record_number=3)
    book.commit_through(3)
    assert (book.fetch("g", A), book.fetch("g", B)) == (offset(9), offset(6))


def test_a_tombstone_takes_the_offsets_of_open_transactions_with_it() -> None:
    book = CommittedOffsets()
    book.write_in_transaction(7, "g", A, record(5), 0)
    assert book.partitions("g") == [A]
    book.write("g", A, None, 1)
    book.end_transaction(7, commit=True, record_number=2)
    book.commit_through(2)
    assert (book.fetch("g", A), book.is_open("g", A)) == (None, False)


Step = tuple[str, int, int]
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("remove"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("in transaction"), st.integers(0, 3), st.integers(1, 2)),
        st.tuples(st.sampled_from(("commit", "abort")), st.just(0), st.integers(1, 2)),
        st.tuples(st.just("settle"), st.integers(0, 3), st.just(0)),
    ),
    max_size=40,
)


def replay(written: list[Step], key: int) -> int | None:
    """The offset of one key after these records, found by reading all of them."""
    value: int | None = None
    since = -1
    pending: dict[int, tuple[int, int]] = {}
    for order, (what, at, producer) in enumerate(written):
        if what == "write" and at == key:
            value, since = order, order
        elif what == "remove" and at == key:
            value, since, pending = None, order, {}
        elif what == "in transaction" and at == key:
            pending[producer] = (order, order)
        elif what in ("commit", "abort") and producer in pending:
            number, written_at = pending.pop(producer)
            if what == "commit" and written_at > since:
                value, since = number, written_at
    return value


def is_unstable(written: list[Step], settled: int, key: int) -> bool:
    """Whether an offset of the key is in an open transaction, or in one whose marker is not among the settled
    records."""
    pending: set[int] = set()
    for order, (what, at, producer) in enumerate(written):
        if what == "remove" and at == key:
            pending.clear()
        elif what == "in transaction" and at == key:
            pending.add(producer)
        elif what in ("commit", "abort") and producer in pending:
            pending.discard(producer)
            if order >= settled:
                return True
    return bool(pending)


@settings(max_examples=300, deadline=None)
@given(steps)
def test_both_views_are_those_of_the_log(life: list[Step]) -> None:
    book, written, settled = CommittedOffsets(), list[Step](), 0
    groups = [("g", A), ("g", B), ("h", A), ("h", B)]
    for what, at, producer in life:
        group, partition = groups[at]
        order = len(written)
        if what == "settle":
            settled = max(settled, len(written) - at)
            book.commit_through(settled - 1)
        else:
            written.append((what, at, producer))
            if what == "write":
                book.write(group, partition, record(order), order)
            elif what == "remove":
                book.write(group, partition, None, order)
            elif what == "in transaction":
                book.write_in_transaction(producer, group, partition, record(order), order)
            else:
                book.end_transaction(producer, commit=what == "commit", record_number=order)
        for index, (name, each) in enumerate(groups):
            seen, newest = book.fetch(name, each), dict(book.newest(name)).get(each)
            assert (seen and seen.offset) == replay(written[:settled], index)
            assert (newest and newest.offset) == replay(written, index)
            assert book.is_unstable(name, each) == is_unstable(written, settled, index)
    loaded = loaded_from(written, groups)
    for index, (name, each) in enumerate(groups):
        seen = loaded.fetch(name, each)
        assert (seen and seen.offset) == replay(written, index)
        assert loaded.is_unstable(name, each) == is_unstable(written, len(written), index)


def loaded_from(written: list[Step], groups: list[tuple[str, TopicPartition]]) -> CommittedOffsets:
    book = CommittedOffsets()
    for order, (what, at, producer) in enumerate(written):
        group, partition = groups[at]
        if what in ("commit", "abort"):
            book.end_transaction(producer, commit=what == "commit", record_number=order)
        elif what == "in transaction":
            book.write_in_transaction(producer, group, partition, record(order), order)
        else:
            book.load(group, partition, None if what == "remove" else record(order), order)
    book.commit_through(len(written))
    return book
