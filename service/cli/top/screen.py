"""The screen of `tidelog top`: turns numbers into rich renderables, without I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from service.cli.top.numbers import (
    ApiNumbers,
    CoordinatorNumbers,
    GroupNumbers,
    NodeNumbers,
    TierNumbers,
    TopicNumbers,
)

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table
    from rich.text import Text

#: The share of the disk above which Produce is slowed by default.
_DISK_FILLING = 0.9
#: The terminal width from which one line has room for all columns of a node.
_WIDE = 130
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@dataclass(frozen=True, slots=True)
class NodeView:
    """The last state of a node. `numbers` is None until there are two readings. `trouble` is the reason why the last scrape
    failed, or None."""

    address: str
    numbers: NodeNumbers | None
    trouble: str | None = None


def screen(seen: Sequence[NodeView], *, title: str, topics: int, apis: int = 12) -> RenderableType:
    """`topics` and `apis` limit the rows of their tables. `topics` also limits the rows of groups. The last line of a table
    counts the omitted rows."""
    from rich.columns import Columns
    from rich.console import Group
    from rich.text import Text

    live = [each.numbers for each in seen if each.numbers is not None and each.trouble is None]
    parts: list[RenderableType] = [Text(title, style="bold"), _Nodes(seen)]
    parts += [Text(f"{each.address}: {each.trouble}", style="red") for each in seen if each.trouble]
    if live:
        parts += _cluster(live)
        side: list[RenderableType] = [_tiering(live), _store(live), Group(*_coordinators(live))]
        parts += [Columns([_requests(live, apis), *side], padding=(0, 2)), _topics(live, topics)]
        parts += _groups(live, topics)
    return Group(*parts)


def _cluster(live: Sequence[NodeNumbers]) -> list[Text]:
    """A line that counts the brokers, if the cluster has several."""
    from rich.text import Text

    brokers, fenced = (max(each) for each in zip(*((n.live_brokers, n.fenced_brokers) for n in live), strict=True))
    if brokers + fenced <= 1:
        return []
    moving = sum(node.moving_partitions for node in live)
    words = f"{count(brokers)} live brokers, {count(fenced)} fenced, {count(moving)} partitions on the move"
    return [Text(words, style="red" if fenced else "")]


# --- tables -----------------------------------------------------------------------------------------------------------
def _table(title: str, first: str, *numbers: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold cyan", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(first, overflow="fold", min_width=min(len(first) * 2, 12))
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


@dataclass(frozen=True)
class _Nodes:
    """A line per node. On a narrow screen, activity and resources are two tables."""

    seen: Sequence[NodeView]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        if options.max_width >= _WIDE:
            yield _nodes(self.seen, {**_DOES, **_NEEDS})
        else:
            yield _nodes(self.seen, _DOES)
            yield _nodes(self.seen, _NEEDS)


def _nodes(seen: Sequence[NodeView], columns: Mapping[str, Callable[[NodeNumbers], str]]) -> Table:
    table = _table("", "node", *columns)
    for column in table.columns:
        if column.header == "state":
            column.justify = "left"
    for each in seen:
        now = each.numbers
        if now is None or each.trouble:
            state = "[red]unreachable[/]" if each.trouble else "first look"
            table.add_row(each.address, *(state if name == "state" else "-" for name in columns))
        else:
            table.add_row(f"{now.node_id} {each.address}", *(cell(now) for cell in columns.values()))
    return table


def _state(now: NodeNumbers) -> str:
    if now.restarted:
        return "[yellow]restarted[/]"
    if now.refused_per_s:
        return "[red]refuses[/]"
    if now.throttled_per_s:
        return "[yellow]slows[/]"
    return "[green]ready[/]" if now.ready else "[yellow]not ready[/]"


def _partitions(now: NodeNumbers) -> str:
    recovering = f" [yellow]({count(now.recovering_partitions)} recovering)[/]" if now.recovering_partitions else ""
    return count(now.partitions) + recovering


def _requests(live: Sequence[NodeNumbers], most: int) -> Table:
    table = _table("requests", "api", "/s", "p50 ms", "p99 ms", "errors/s")
    rows = _merged_apis(live)
    for row in rows[:most]:
        errors = _warn(count(row.errors_per_s), row.errors_per_s > 0)
        table.add_row(row.api, count(row.per_s), millis(row.p50_ms), millis(row.p99_ms), errors)
    _and_more(table, len(rows) - most)
    if not rows:
        table.add_row("[dim]none[/]", "", "", "", "")
    return table


def _merged_apis(live: Sequence[NodeNumbers]) -> list[ApiNumbers]:
    """Merges the nodes. Rates are sums, and quantiles are those of the worst node."""
    found: dict[str, ApiNumbers] = {}
    for row in (row for node in live for row in node.apis):
        known = found.get(row.api)
        if known is not None:
            row = ApiNumbers(
                row.api,
                row.per_s + known.per_s,
                _worst(row.p50_ms, known.p50_ms),
                _worst(row.p99_ms, known.p99_ms),
                row.errors_per_s + known.errors_per_s,
            )
        found[row.api] = row
    return sorted(found.values(), key=lambda row: (-row.per_s, row.api))


def _worst(one: float | None, other: float | None) -> float | None:
    return max((value for value in (one, other) if value is not None), default=None)


def _tiering(live: Sequence[NodeNumbers]) -> Table:
    tiers = [node.tier for node in live]

    def total(field: Callable[[TierNumbers], float]) -> float:
        return sum(map(field, tiers))

    hits = [tier.hit_ratio for tier in tiers if tier.hit_ratio is not None]
    rows = {
        "served hot": size(total(lambda t: t.hot_bytes_per_s)) + "/s",
        "served cold": size(total(lambda t: t.cold_bytes_per_s)) + "/s",
        "offload lag": size(total(lambda t: t.lag_bytes)),
        "  segments": count(total(lambda t: t.lag_segments)),
        "  oldest": duration(max(tier.lag_s for tier in tiers)),
        "uploaded": size(total(lambda t: t.uploaded_per_s)) + "/s",
        "downloaded": size(total(lambda t: t.downloaded_per_s)) + "/s",
        "evicted": size(total(lambda t: t.evicted_per_s)) + "/s",
        "cache hits": "-" if not hits else f"{sum(hits) / len(hits):.0%}",
        "cache": f"{size(total(lambda t: t.cache_bytes))} of {size(total(lambda t: t.cache_limit_bytes))}",
    }
    return _pairs("tiering", rows)


def _store(live: Sequence[NodeNumbers]) -> Table:
    operations: dict[str, float] = {}
    for tier in (node.tier for node in live):
        for operation, per_s in tier.store.items():
            operations[operation] = operations.get(operation, 0.0) + per_s
    table = _table("store requests", "", "/s")
    table.show_header = False
    for operation, per_s in operations.items():
        table.add_row(operation, count(per_s) + "/s")
    errors = sum(node.tier.store_errors_per_s for node in live)
    table.add_row("errors", _warn(count(errors) + "/s", errors > 0))
    table.add_row("retries", count(sum(node.tier.store_retries_per_s for node in live)) + "/s")
    return table


def _coordinators(live: Sequence[NodeNumbers]) -> list[Table]:
    """A table of groups and a table of transactions, each only if it would have content."""
    coordinators = [node.coordinators for node in live]

    def total(field: Callable[[CoordinatorNumbers], float]) -> float:
        return sum(map(field, coordinators))

    completing, held_back = total(lambda c: c.completing), total(lambda c: c.held_back_bytes)
    found = []
    if total(lambda c: c.groups):
        groups = {
            "groups": count(total(lambda c: c.groups)),
            "  rebalancing": count(total(lambda c: c.rebalancing)),
            "members": count(total(lambda c: c.members)),
            "rebalances": count(total(lambda c: c.rebalances_per_s)) + "/s",
            "offsets": count(total(lambda c: c.commits_per_s)) + "/s",
        }
        found.append(_pairs("consumer groups", groups))
    if total(lambda c: c.transactional_ids):
        transactions = {
            "committed": count(total(lambda c: c.committed_per_s)) + "/s",
            "aborted": count(total(lambda c: c.aborted_per_s)) + "/s",
            "open": count(total(lambda c: c.undecided)),
            "  oldest": duration(max(each.oldest_s for each in coordinators)),
            "  hold back": _warn(size(held_back), held_back > 0),
            "completing": count(completing),
        }
        found.append(_pairs("transactions", transactions))
    return found


def _pairs(title: str, rows: Mapping[str, str]) -> Table:
    table = _table(title, "", "")
    table.show_header = False
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _groups(live: Sequence[NodeNumbers], most: int) -> list[Table]:
    """The groups that are behind. A group has one coordinator, but each node sees only the lag of partitions that it leads."""
    found: dict[str, GroupNumbers] = {}
    for row in (row for node in live for row in node.coordinators.lags):
        known = found.get(row.group, GroupNumbers(row.group, 0, 0))
        found[row.group] = GroupNumbers(row.group, row.lag + known.lag, row.in_bucket + known.in_bucket)
    if not found:
        return []
    table = _table("groups that are behind", "group", "records", "in bucket")
    rows = sorted(found.values(), key=lambda row: (-row.lag, row.group))
    for row in rows[:most]:
        table.add_row(row.group, count(row.lag), count(row.in_bucket))
    _and_more(table, len(rows) - most)
    return [table]


def _topics(live: Sequence[NodeNumbers], most: int) -> Table:
    columns = ("records/s", "in/s", "out/s", "hot", "in bucket", "offload lag", "oldest")
    table = _table("topics", "topic", *columns)
    rows = _merged_topics(live)
    for row in rows[:most]:
        table.add_row(
            row.topic,
            count(row.records_in_per_s),
            size(row.bytes_in_per_s),
            size(row.bytes_out_per_s),
            size(row.hot_bytes),
            size(row.cold_bytes),
            size(row.lag_bytes),
            duration(row.lag_s),
        )
    _and_more(table, len(rows) - most)
    if not rows:
        table.add_row("[dim]none[/]", *[""] * len(columns))
    return table


def _merged_topics(live: Sequence[NodeNumbers]) -> list[TopicNumbers]:
    found: dict[str, TopicNumbers] = {}
    for row in (row for node in live for row in node.topics):
        known = found.get(row.topic)
        if known is not None:
            row = TopicNumbers(
                row.topic,
                row.records_in_per_s + known.records_in_per_s,
                row.bytes_in_per_s + known.bytes_in_per_s,
                row.bytes_out_per_s + known.bytes_out_per_s,
                row.hot_bytes + known.hot_bytes,
                row.cold_bytes + known.cold_bytes,
                row.lag_bytes + known.lag_bytes,
                max(row.lag_s, known.lag_s),
            )
        found[row.topic] = row
    return sorted(
        found.values(), key=lambda row: (-row.bytes_in_per_s - row.bytes_out_per_s, -row.hot_bytes, row.topic)
    )


def _and_more(table: Table, more: int) -> None:
    if more > 0:
        table.add_row(f"[dim]and {more} more[/]", *[""] * (len(table.columns) - 1))


def _store_state(now: NodeNumbers) -> str:
    # This is shown even if the store answers, because the cluster or some partitions offload nothing until an operator acts.
    if now.store_behind:
        return "[red]behind[/]"
    return {True: "[green]ok[/]", False: "[red]away[/]", None: "none"}[now.store_reachable]


#: The columns of nodes: their activity, and the resources that they use.
_DOES: Mapping[str, Callable[[NodeNumbers], str]] = {
    "state": _state,
    "up": lambda now: duration(now.uptime_s),
    "in/s": lambda now: size(now.bytes_in_per_s),
    "out/s": lambda now: size(now.bytes_out_per_s),
    "req/s": lambda now: count(now.requests_per_s),
    "conns": lambda now: count(now.connections),
    "store": _store_state,
}
_NEEDS: Mapping[str, Callable[[NodeNumbers], str]] = {
    "partitions": _partitions,
    "cpu": lambda now: f"{now.cpu_cores:.0%}",
    "memory": lambda now: size(now.memory_bytes),
    "tier memory": lambda now: size(now.tier_memory_bytes),
    "disk": lambda now: _warn(f"{now.disk_used:.0%}", now.disk_used >= _DISK_FILLING),
}


# --- words ------------------------------------------------------------------------------------------------------------
def size(value: float) -> str:
    """A number of bytes with three digits, so that columns stay narrow."""
    unit = 0
    while value >= 999.5 and unit < len(_SIZES) - 1:
        value, unit = value / 1024, unit + 1
    return f"{_three_digits(value) if unit else round(value)} {_SIZES[unit]}"


def count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def millis(value: float | None) -> str:
    return "-" if value is None else _three_digits(value)


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _warn(text: str, wrong: bool) -> str:
    return f"[red]{text}[/]" if wrong else text


def as_json(seen: NodeView) -> Mapping[str, object]:
    """The `--json` output for a node: the fields of `NodeNumbers`, or the reason why there are none."""
    from dataclasses import asdict

    numbers = None if seen.trouble or seen.numbers is None else asdict(seen.numbers)
    return {"address": seen.address, "reached": seen.trouble is None, "trouble": seen.trouble, "numbers": numbers}
