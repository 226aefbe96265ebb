"""How a benchmark table summarises its rounds: medians, ratios, verdicts."""

from __future__ import annotations

from benchmarks import cluster, fleet
from benchmarks.table import BESIDE, Row, Table, cluster_row, rendered, summary, verdicts

P99 = "produce p99 beside a cold scan"


def table_of(*figures: tuple[str, str, str, float]) -> Table:
    table = Table()
    for figure in figures:
        table.add(*figure)
    return table


def judged(table: Table, name: str) -> list[str]:
    rows = list(table.rows.values())
    return [verdict for row in rows if row.name == name for _, _, verdict in verdicts(row, rows)]


def test_a_ratio_is_of_medians_of_rounds() -> None:
    row = Row("produce 16 KiB batches", "MB/s", {"kafka": [90, 100, 500], "tidelog": [10, 131, 140]})
    ((_, value, verdict),) = verdicts(row, [row])
    assert value == 1.31
    assert verdict == "met"


def test_less_may_be_better_and_a_bound_may_need_no_rival() -> None:
    table = table_of(
        ("kafka", "start to first answer", "s", 3.0),
        ("tidelog", "start to first answer", "s", 1.6),
        ("tidelog", "resident memory of an idle node", "MB", 70.0),
    )
    assert judged(table, "start to first answer") == ["missed"]
    assert judged(table, "resident memory of an idle node") == ["met"]


def test_a_row_without_its_rival_has_no_verdict() -> None:
    table = table_of(("floor", "fetch, 1 MiB", "MB/s", 2000.0), ("tidelog", "fetch, 1 MiB", "MB/s", 1900.0))
    assert judged(table, "fetch, 1 MiB") == []
    assert "0.95" in rendered(list(table.rows.values()))
    assert "fetch" not in summary(list(table.rows.values()))


def test_produce_beside_a_scan_counts_only_if_the_scan_continued() -> None:
    table = table_of(
        ("idle", P99, "ms", 1.0),
        ("tidelog", P99, "ms", 2.0),
        ("alone", BESIDE, "MB/s", 100.0),
        ("tidelog", BESIDE, "MB/s", 40.0),
    )
    assert judged(table, BESIDE) == ["missed"]
    assert judged(table, P99) == ["void"]
    table.rows[BESIDE, "MB/s"].rounds["tidelog"] = [60.0]
    assert judged(table, P99) == ["met"]


def test_a_row_may_have_two_rivals() -> None:
    name = "Spark scan of cold 100 B records, local[2]"
    table = table_of(("tidelog", name, "M/s", 6.0), ("kafka", name, "M/s", 1.0), ("prebuilt", name, "M/s", 12.0))
    assert judged(table, name) == ["met", "missed"]
    assert "met, **missed**" in rendered(list(table.rows.values()))


def test_a_clusters_arithmetic_leaves_the_clients_processor_time_out() -> None:
    table, name = Table(), fleet.FLEETS[0].name
    for column, spent in (("one broker", 2.0), ("tidelog", 2.5)):
        table.add(column, cluster_row(f"{name}: broker processor"), "s/GB", spent)
        table.add(column, cluster_row(f"{name}: client processor"), "s/GB", 1.5)
    cluster.add_arithmetic(table, "tidelog")
    assert table.rows[cluster_row(name), "MB/s"].rounds == {"two cores": [2000 / (2.5 + 1.5)]}
    alone = table.rows[cluster_row(f"{name}: brokers alone"), "MB/s"]
    assert alone.rounds == {"one broker": [500.0], "tidelog": [800.0]}
    assert verdicts(alone, [alone])[0][1:] == (1.6, "met")
    assert len(table.rows) == 4, "rows without figures are left out"
