"""Cycles of operations, each of which must precede the next. Tarjan's algorithm finds them.

There are three kinds of edges between two operations. *ww*: both sent to a key, and the first one's record has the lower
offset. *wr*: the second polled a value that the first sent. *time*: the first ended before the second began. In a sound history
every edge leads from an earlier commit to a later one, so no cycle closes.

Kafka does not isolate writers: records of transactions that overlap in time interleave, perhaps in a different order in each
key. So only operations that do not overlap get ww edges. A ww edge that agrees with the clock adds nothing to the time edges
and is left out; the others are found per key.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import TypeVar

from tests.history.logs import Logs
from tests.history.operations import Operation

N = TypeVar("N", bound=Hashable)
#: A node is an operation's number (0 or more), or the end of an operation as the negative number -1 - time.
Graph = dict[int, dict[int, str]]
TIME = "time"


def components(graph: Mapping[N, Iterable[N]]) -> list[list[N]]:
    """The strongly connected components of more than one node. There is no recursion, as histories are long."""
    index: dict[N, int] = {}
    low: dict[N, int] = {}
    stack: list[N] = []
    on_stack: set[N] = set()
    found: list[list[N]] = []
    for root in graph:
        if root in index:
            continue
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        path = [(root, iter(graph.get(root, ())))]
        while path:
            node, others = path[-1]
            other = next(others, None)
            if other is None:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == index[node]:
                    component = [stack.pop()]
                    while component[-1] != node:
                        component.append(stack.pop())
                    on_stack.difference_update(component)
                    if len(component) > 1:
                        found.append(component)
            elif other not in index:
                index[other] = low[other] = len(index)
                stack.append(other)
                on_stack.add(other)
                path.append((other, iter(graph.get(other, ()))))
            elif other in on_stack:
                low[node] = min(low[node], index[other])
    return found


def shortest_path(graph: Mapping[N, Iterable[N]], start: N, goal: N, within: set[N]) -> list[N]:
    """The nodes of a shortest path from `start` to `goal`, both included."""
    came: dict[N, N] = {start: start}
    waiting = deque([start])
    while waiting:
        node = waiting.popleft()
        if node == goal:
            path = [node]
            while path[-1] != start:
                path.append(came[path[-1]])
            return path[::-1]
        for other in graph.get(node, ()):
            if other in within and other not in came:
                came[other] = node
                waiting.append(other)
    raise AssertionError(f"no path from {start} to {goal} in a component")


def write_cycles(logs: Logs) -> Iterator[str]:
    """G0: cycles of ww and time edges alone. One sentence per component, which gives a shortest cycle."""
    graph = _graph(logs, reads=False)
    for component in components(graph):
        yield _told(logs, graph, set(component), "ww")


def information_cycles(logs: Logs) -> Iterator[str]:
    """G1c: cycles with at least one wr edge. One sentence per component."""
    graph = _graph(logs, reads=True)
    for component in components(graph):
        within = set(component)
        if any(what.startswith("wr") for node in component for to, what in graph[node].items() if to in within):
            yield _told(logs, graph, within, "wr")


def _graph(logs: Logs, *, reads: bool) -> Graph:
    graph: Graph = defaultdict(dict)
    done = logs.operations.done
    numbers = {id(operation): number for number, operation in enumerate(done)}
    ends = sorted({operation.end for operation in done})
    # A chain of moments replaces time edges from each operation to all later ones.
    for end, following in pairwise(ends):
        graph[-1 - end][-1 - following] = TIME
    for number, operation in enumerate(done):
        graph[number][-1 - operation.end] = TIME
        before = ends[: bisect_right(ends, operation.begin - 1)]
        if before:
            graph[-1 - before[-1]][number] = TIME
    for key in logs.values:
        for early, late, what in _against_time(logs, key):
            graph[numbers[id(early)]].setdefault(numbers[id(late)], what)
    if reads:
        for number, operation in enumerate(done):
            for step in operation.polls():
                if step.value in logs.writers and logs.writers[step.value][0] is not operation:
                    writer = numbers[id(logs.writers[step.value][0])]
                    graph[writer].setdefault(number, f"wr {step.key}/{step.offset}")
    return graph


def _against_time(logs: Logs, key: str) -> Iterator[tuple[Operation, Operation, str]]:
    """Pairs of an operation and one at a higher offset that had ended before the first began. Each first operation is paired
    only with the operation that ended earliest."""
    earliest: tuple[Operation, int] | None = None
    for offset in sorted(logs.values[key], reverse=True):
        for value in logs.values[key][offset]:
            if value not in logs.writers:
                continue
            operation = logs.writers[value][0]
            if earliest is not None and earliest[0].end < operation.begin:
                yield operation, earliest[0], f"ww {key}/{offset} and {earliest[1]}"
            if earliest is None or operation.end < earliest[0].end:
                earliest = operation, offset


def _told(logs: Logs, graph: Graph, within: set[int], needed: str) -> str:
    """A shortest cycle through an edge of the kind `needed`."""
    start, to = next(
        (node, other)
        for node in sorted(within, reverse=True)
        for other, what in graph[node].items()
        if other in within and what.startswith(needed)
    )
    path = [start, *shortest_path(graph, to, start, within)]
    words = [str(logs.operations.done[start])]
    for node, other in pairwise(path):
        if other >= 0:
            words.append(f"-> ({graph[node][other]}) {logs.operations.done[other]}")
    return " ".join(words)
