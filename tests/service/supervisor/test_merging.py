"""The metrics pages of several brokers become one page, which Prometheus's own client can read."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from service.supervisor.merging import merged

PAGE = """# HELP bytes_total Bytes.
# TYPE bytes_total counter
bytes_total{{topic="a b",text="}} \\"x\\" 1"}} {first}
bytes_total{{topic="c"}} 2
# HELP up Ready.
# TYPE up gauge
up {second}
# HELP took_seconds Time.
# TYPE took_seconds histogram
took_seconds_bucket{{le="0.5"}} 1
took_seconds_bucket{{le="+Inf"}} 3
took_seconds_count 3
took_seconds_sum 4.5
"""


def test_every_sample_gets_its_broker_and_every_metric_one_head() -> None:
    pages = {1: PAGE.format(first=1, second=1), 2: PAGE.format(first=10, second=0) + "# TYPE own gauge\nown 7\n"}
    text = merged(pages)
    families = {each.name: each for each in text_string_to_metric_families(text)}
    assert list(families) == ["bytes", "up", "took_seconds", "own"]
    assert text.count("# TYPE bytes_total counter") == text.count("# HELP bytes_total Bytes.") == 1
    samples = [(each.labels["broker"], each.labels["topic"], each.value) for each in families["bytes"].samples]
    assert samples == [("1", "a b", 1.0), ("1", "c", 2.0), ("2", "a b", 10.0), ("2", "c", 2.0)]
    assert families["bytes"].samples[0].labels["text"] == '} "x" 1'
    assert [each.labels for each in families["up"].samples] == [{"broker": "1"}, {"broker": "2"}]
    buckets = [each.labels for each in families["took_seconds"].samples if each.name == "took_seconds_bucket"]
    assert buckets[2] == {"broker": "2", "le": "0.5"}
    assert [each.labels for each in families["own"].samples] == [{"broker": "2"}]


def test_the_page_of_no_brokers_is_empty() -> None:
    assert merged({}) == ""
