"""Merges the metrics pages of several brokers. Every sample gets the label `broker`, and every metric gets one HELP and TYPE.
Pure.

Not promised: a result for a page that is not in Prometheus's text format 0.0.4.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_SAMPLE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})? (\S+)")
_HEAD = re.compile(r"# (?:HELP|TYPE) (\S+) ")


def merged(pages: Mapping[int, str]) -> str:
    """`pages` are keyed by broker id. Metrics keep the order of their first appearance."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for broker, page in pages.items():
        family = ""
        for line in page.splitlines():
            if head := _HEAD.match(line):
                family = head[1]
                if line not in heads.setdefault(family, []):
                    heads[family].append(line)
            elif sample := _SAMPLE.fullmatch(line):
                labels = f'broker="{broker}"' + (f",{sample[2]}" if sample[2] else "")
                samples.setdefault(family, []).append(f"{sample[1]}{{{labels}}} {sample[3]}")
    return "".join("\n".join((*heads.get(family, ()), *lines)) + "\n" for family, lines in samples.items())
