"""Versions of the metadata that a node shows to its gRPC clients.

    63 bits:  | start of the node, 31 bits, random | changes since that start, 32 bits |

Versions of one start are compared as numbers. Those of two starts, or of two nodes, are only known to differ.
"""

from __future__ import annotations

from storage_tiers.clock import Rng

_COUNT_BITS = 32


def first_version(rng: Rng) -> int:
    """The first version of a start, above 0."""
    return ((int.from_bytes(rng.token(4), "big") >> 1 | 1) << _COUNT_BITS) + 1


def is_seen(wanted: int, shown: int, before: int) -> bool:
    """Whether a copy at version `shown` has the change of version `wanted`. `before` is the copy's version when the answer to
    the change arrived. If `shown` is of neither of these two starts, the copy was begun after the answer and has the change."""
    if _start(shown) == _start(wanted):
        return shown >= wanted
    return _start(shown) != _start(before)


def _start(version: int) -> int:
    return version >> _COUNT_BITS
