"""The amount compared: per API, distinct fields over all versions, and single values. The counts may only rise.

`counts.json`, and `counts_of_three.json` of three brokers, hold the last recorded counts. `make differential
ARGS=--write-counts` rewrites them.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.differential.compare import Outcome

PATH = Path(__file__).parent / "counts.json"
PATH_OF_THREE = Path(__file__).parent / "counts_of_three.json"
_KEY = re.compile(r"<[^>]*>")


@dataclasses.dataclass(frozen=True)
class Count:
    """`fields`: number of distinct (version, field) pairs; `values`: number of single comparisons."""

    fields: int
    values: int


def counted(outcomes: Iterable[Outcome]) -> dict[str, Count]:
    fields: dict[str, set[tuple[int, str]]] = {}
    values: Counter[str] = Counter()
    for outcome in outcomes:
        for api, version, path in outcome.compared:
            fields.setdefault(api, set()).add((version, _KEY.sub("<>", path)))
            values[api] += 1
    return {api: Count(len(fields[api]), values[api]) for api in sorted(fields)}


def read(path: Path = PATH) -> dict[str, Count]:
    return {api: Count(**row) for api, row in json.loads(path.read_text()).items()}


def write(counts: dict[str, Count], path: Path = PATH) -> None:
    path.write_text(json.dumps({api: dataclasses.asdict(count) for api, count in counts.items()}, indent=2) + "\n")


def fallen(before: dict[str, Count], now: dict[str, Count]) -> list[str]:
    """One line for each API whose counts have fallen."""
    none = Count(0, 0)
    return [
        f"{api}: {count.fields} fields and {count.values} values before, now {got.fields} and {got.values}"
        for api, count in before.items()
        if (got := now.get(api, none)).fields < count.fields or got.values < count.values
    ]


def risen(before: dict[str, Count], now: dict[str, Count]) -> bool:
    none = Count(0, 0)
    return any(
        count.fields > before.get(api, none).fields or count.values > before.get(api, none).values
        for api, count in now.items()
    )


def table(counts: dict[str, Count]) -> str:
    rows = [("API", "fields", "values"), *((api, f"{c.fields:,}", f"{c.values:,}") for api, c in counts.items())]
    total = Count(sum(c.fields for c in counts.values()), sum(c.values for c in counts.values()))
    rows.append(("in all", f"{total.fields:,}", f"{total.values:,}"))
    return "\n".join(f"{name:<28}{fields:>8}{values:>10}" for name, fields, values in rows)
