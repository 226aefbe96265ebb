"""The comparison itself: it reports every difference except those that the tables name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.differential import pinned
from tests.differential.batches import Batch, Record, read_batches
from tests.differential.compare import Outcome, Side, compare
from tests.differential.counts import Count, counted, fallen, risen
from tests.differential.peer import CLOSED, Exchange
from tests.differential.rules import ABSENT, ANY, Kind, Normalised, OnPurpose

NOW = 1_800_000_000_000
KAFKA = Side("127.0.0.1", {1: 1111}, NOW, NOW + 100, {"k-id": "t 1"})
TIDELOG = Side("127.0.0.1", {1: 2222}, NOW, NOW + 100, {"t-id": "t 1"})


def judged(
    kafka: Any, tidelog: Any, rules: Sequence[Normalised] = (), rows: Sequence[OnPurpose] = (), steps: int = 1
) -> Outcome:
    left, right = (kafka, tidelog) if steps > 1 else ([kafka], [tidelog])
    heard, ours = ([Exchange("api", 3, f"step {n}", a) for n, a in enumerate(side)] for side in (left, right))
    return compare("s", heard, ours, (KAFKA, TIDELOG), rules, rows)


def found(outcome: Outcome) -> list[tuple[str, Any, Any]]:
    return [(d.leaf.place, d.leaf.kafka, d.leaf.tidelog) for d in outcome.differences]


def test_equal_answers_are_counted_leaf_by_leaf() -> None:
    answer = {"code": "NONE", "rows": [{"n": 1}, {"n": 2}], "none": None}
    outcome = judged(answer, answer)
    assert outcome.differences == []
    paths = [path for _, _, path in outcome.compared]
    assert paths == ["code", "rows.length", "rows.n", "rows.n", "none"]


@pytest.mark.parametrize(
    ("kafka", "tidelog", "expected"),
    [
        ({"n": 1}, {"n": 2}, ("n", 1, 2)),
        ({"n": 1}, {}, ("n", 1, ABSENT)),
        ({}, {"n": 1}, ("n", ABSENT, 1)),
        ({"n": None}, {"n": 0}, ("n", None, 0)),
        ({"n": [1, 2]}, {"n": [2, 1]}, ("n[0]", 1, 2)),
        ({"n": [1]}, {"n": [1, 7]}, ("n[1]", ABSENT, 7)),
        ({"n": {"a": 1}}, {"n": None}, ("n", {"a": 1}, None)),
        ({"n": 1}, CLOSED, ("connection", "answered", "closed")),
        (CLOSED, {"n": 1}, ("connection", "closed", "answered")),
    ],
)
def test_differences_are_reported_with_their_paths(kafka: Any, tidelog: Any, expected: tuple[str, Any, Any]) -> None:
    assert expected in found(judged(kafka, tidelog))


def test_transcripts_of_other_steps_are_not_compared() -> None:
    with pytest.raises(ValueError, match="different steps"):
        compare("s", [Exchange("a", 1, "x", {})], [Exchange("a", 1, "y", {})], (KAFKA, TIDELOG), (), ())


def test_the_wording_of_a_text_is_not_compared_but_its_presence_is() -> None:
    rule = (Normalised("api", "m", Kind.TEXT),)
    assert found(judged({"m": "no"}, {"m": "not so"}, rule)) == []
    assert found(judged({"m": "no"}, {"m": None}, rule)) == [("m", "<text>", None)]
    assert found(judged({"m": ""}, {"m": None}, rule)) == [("m", "", None)]


def test_a_time_within_the_run_is_now_and_another_is_not() -> None:
    rule = (Normalised("api", "t", Kind.WALL_CLOCK),)
    assert found(judged({"t": NOW + 5}, {"t": NOW + 90}, rule)) == []
    assert found(judged({"t": NOW}, {"t": -1}, rule)) == [("t", "<now>", -1)]
    assert found(judged({"t": NOW}, {"t": NOW - 3_600_000}, rule)) == [("t", "<now>", NOW - 3_600_000)]


def test_an_address_is_the_brokers_own() -> None:
    rule = (Normalised("api", "port", Kind.OWN_ADDRESS),)
    assert found(judged({"port": 1111}, {"port": 2222}, rule)) == []
    assert found(judged({"port": 1111}, {"port": 1111}, rule)) == [("port", "<its own>", 1111)]


def test_a_positive_number_is_not_zero() -> None:
    rule = (Normalised("api", "n", Kind.POSITIVE),)
    assert found(judged({"n": 4}, {"n": 9}, rule)) == []
    assert found(judged({"n": 4}, {"n": 0}, rule)) == [("n", "<positive>", 0)]


def test_inconsistent_names_are_a_difference() -> None:
    rule = (Normalised("api", "id", Kind.IDENTITY, "thing"),)
    same = [{"id": "x"}, {"id": "y"}, {"id": "x"}, {"id": None}]
    assert found(judged(same, [{"id": 7}, {"id": 8}, {"id": 7}, {"id": None}], rule, steps=4)) == []
    (mixed,) = found(judged(same, [{"id": 7}, {"id": 8}, {"id": 8}, {"id": None}], rule, steps=4))
    assert mixed == ("id", "<thing 1>", "<thing 2>")
    assert found(judged({"id": "k-id"}, {"id": "t-id"}, rule)) == []
    assert found(judged({"id": "k-id"}, {"id": "other"}, rule)) == [("id", "<thing of t 1>", "<thing 1>")]


def test_rows_in_any_order_are_matched_by_their_key() -> None:
    rule = (Normalised("api", "rows", Kind.ANY_ORDER, "name"),)
    kafka = {"rows": [{"name": "a", "n": 1}, {"name": "b", "n": 2}]}
    assert found(judged(kafka, {"rows": kafka["rows"][::-1]}, rule)) == []
    tidelog = {"rows": [{"name": "b", "n": 2}, {"name": "a", "n": 3}, {"name": "a", "n": 4}]}
    assert found(judged(kafka, tidelog, rule)) == [
        ("rows.<a>.n", 1, 3),
        ("rows.<a #2>", ABSENT, {"name": "a", "n": 4}),
    ]


def test_an_intended_difference_is_excused_only_where_it_is_declared() -> None:
    row = OnPurpose("api", "n", 1, 2, "because", "s: step 0")
    outcome = judged([{"n": 1}, {"n": 1}], [{"n": 2}, {"n": 2}], rows=[row], steps=2)
    assert found(outcome) == [("n", 1, 2)]
    assert outcome.differences[0].exchange.label == "step 1"
    assert outcome.on_purpose == {row}
    assert found(judged({"n": 1}, {"n": 3}, rows=[row])) == [("n", 1, 3)]
    assert found(judged({"n": 1}, {"n": 3}, rows=[OnPurpose("api", "n", 1, ANY, "because")])) == []


def test_counts_may_rise_and_not_fall() -> None:
    answer = {"rows": [{"n": 1}, {"n": 2}]}
    rule = (Normalised("api", "rows", Kind.ANY_ORDER, "n"),)
    now = counted([judged(answer, answer, rule), judged(answer, answer, rule)])
    assert now == {"api": Count(fields=1, values=4)}
    assert fallen({"api": Count(1, 5)}, now) == ["api: 1 fields and 5 values before, now 1 and 4"]
    assert fallen({"gone": Count(1, 1)}, now) != []
    assert fallen({"api": Count(1, 3)}, now) == []
    assert risen({"api": Count(1, 3)}, now)
    assert not risen(now, now)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_batches_are_read_as_they_were_written(codec: str) -> None:
    records = [Record(b"v", b"k", [("h", b"1"), ("n", None)]), Record(None, after=7), Record(b"x" * 300)]
    written = Batch(records, codec=codec, producer=(5, 1, 9)).encode()
    (first, cut) = read_batches(written + written[:70])
    assert cut == {"cut off": True}
    assert first["crc_is_right"]
    assert (first["producer_id"], first["producer_epoch"], first["base_sequence"]) == (5, 1, 9)
    assert [record["value"] for record in first["records"][:2]] == ["76", None]
    assert first["records"][0]["headers"] == [["68", "31"], ["6e", None]]
    assert first["max_timestamp"] - first["base_timestamp"] == 7


def test_a_brokers_port_must_be_that_of_the_same_broker_on_the_other_side() -> None:
    sides = (Side("h", {1: 11, 2: 12}, NOW, NOW), Side("h", {1: 21, 2: 22}, NOW, NOW))
    rules = [Normalised("*", "port", Kind.OWN_ADDRESS), Normalised("*", "controller", Kind.A_BROKER)]

    def differing(kafka: Any, tidelog: Any) -> list[Any]:
        left, right = ([Exchange("api", 3, "step", answer)] for answer in (kafka, tidelog))
        return found(compare("s", left, right, sides, rules, []))

    assert differing({"port": 12, "controller": 1}, {"port": 22, "controller": 2}) == []
    assert differing({"port": 12}, {"port": 21}) == [("port", "<broker 2's>", "<broker 1's>")]
    assert differing({"port": 12}, {"port": 12}) == [("port", "<broker 2's>", 12)]
    assert differing({"controller": 1}, {"controller": 3}) == [("controller", "<a broker>", 3)]


# --- our own answers, where they may be anything ------------------------------------------------------------------------
def free(kafka: Any, tidelog: Any) -> Outcome:
    row = OnPurpose("api", "n", ANY, ANY, "because")
    return judged(kafka, tidelog, rows=[row])


def test_for_any_intended_difference_our_answer_is_recorded() -> None:
    was = free({"n": 1, "m": 3}, {"n": {"topic": "s-v3-t", "code": "A"}, "m": 3})
    assert was.differences == []
    known = pinned.collected([("s", 3, was), ("s", 4, free({"n": 1}, {"n": {"topic": "s-v4-t", "code": "A"}}))])
    assert known == {"s": {"step 0 (api)": {"n": {'{"code": "A", "topic": "s-t"}': [3, 4]}}}}
    asked = [Exchange("api", 3, "step 0", {})]
    assert pinned.strayed(known, "s", 3, was, asked) == []
    (strayed,) = pinned.strayed(known, "s", 3, free({"n": 1}, {"n": {"topic": "s-v3-t", "code": "B"}}), asked)
    assert strayed.leaf.kafka == '{"code": "A", "topic": "s-t"}'
    assert pinned.strayed(known, "s", 3, free({"n": 1}, {"n": 1}), asked), "our own answer now equals Kafka's"
    assert pinned.strayed(known, "s", 5, was, asked), "no answer of version 5 is recorded"
    assert pinned.strayed({}, "s", 3, was, asked)
    assert pinned.gone(known, known) == []
    assert pinned.gone(known, {}) == ["s: step 0 (api): n"]
