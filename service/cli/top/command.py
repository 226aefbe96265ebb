"""`tidelog top`: current activity of nodes, from two scrapes of /metrics. The output is live on a terminal; scripts get a
single screen or JSON.

A node serves one scrape per interval. A node that does not answer keeps its line, with the reason, and is scraped again later.
A restarted node is found at its old address or through the bootstrap node, which knows all listeners.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.errors import CommandError, Unreachable
from service.cli.kafka import DEFAULT_BOOTSTRAP, Bootstrap, Profile, http_addresses
from service.cli.output import AsJson, print_json_line
from service.cli.top.numbers import Scrape, node_numbers
from service.cli.top.screen import NodeView, as_json, screen

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from storage_tiers.clock import Clock

#: The longest time for a scrape. After it the node counts as unreachable.
SCRAPE_TIMEOUT_S = 10.0
#: The largest scrape, in bytes.
LONGEST_SCRAPE = 64 << 20
#: The maximum number of concurrent scrapes.
SCRAPES_AT_ONCE = 16
SHORTEST_INTERVAL_S, LONGEST_INTERVAL_S = 0.2, 86_400.0
#: The width of the screen if the output is not a terminal.
WIDTH = 150


def top(
    http: Annotated[
        list[str] | None,
        typer.Option(
            "--http", metavar="HOST:PORT", help="A node's HTTP address, instead of its advertised one; repeatable."
        ),
    ] = None,
    interval: Annotated[float, typer.Option("--interval", "-i", help="Seconds between two scrapes.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Scrape twice, print one screen, and exit.")] = False,
    topics: Annotated[int, typer.Option(help="Number of topics to show, the busiest first.")] = 10,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    profile: Profile = None,
) -> None:
    """Show the activity of nodes until Ctrl-C: throughput, requests, tiers, topics.

    With --json, prints a line per node and scrape.
    """
    from storage_tiers.clock import SystemClock

    if not SHORTEST_INTERVAL_S <= interval <= LONGEST_INTERVAL_S:
        raise typer.BadParameter(
            f"it must be from {SHORTEST_INTERVAL_S} s to {LONGEST_INTERVAL_S} s", param_hint="--interval"
        )
    find = None if http else partial(http_addresses, bootstrap)
    named = [address.removeprefix("http://").rstrip("/").removesuffix("/metrics") for address in http or ()]
    nodes = Nodes(named or http_addresses(bootstrap), SystemClock(), find=find)
    try:
        if once or as_json or not sys.stdout.isatty():
            _print(nodes, interval, topics, lines=as_json, forever=as_json and not once)
        else:
            _live(nodes, interval, topics)
    except KeyboardInterrupt:
        pass
    finally:
        nodes.close()


class Nodes:
    """The watched nodes and the newest reading of each. `find` looks up the addresses again if a node does not answer."""

    def __init__(self, addresses: Iterable[str], clock: Clock, *, find: Callable[[], list[str]] | None = None) -> None:
        self._clock = clock
        self._find = find
        self._readings: dict[str, Scrape | None] = {}
        self._seen: list[NodeView] = []
        self._take(addresses)
        self._threads = ThreadPoolExecutor(SCRAPES_AT_ONCE, thread_name_prefix="scrape")

    def look(self) -> list[NodeView]:
        """Scrapes all nodes. A node has numbers from its second scrape on."""
        if any(each.trouble for each in self._seen) and self._find is not None:
            with contextlib.suppress(CommandError):
                self._take(self._find())
        self._seen = list(self._threads.map(self._scraped, self._seen))
        return self._seen

    def _take(self, addresses: Iterable[str]) -> None:
        known = {each.address: each for each in self._seen}
        self._seen = [known.get(address, NodeView(address, None)) for address in dict.fromkeys(addresses)]
        self._readings = {each.address: self._readings.get(each.address) for each in self._seen}

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _scraped(self, last: NodeView) -> NodeView:
        before = self._readings[last.address]
        try:
            text = scrape(last.address)
            after = Scrape.parse(text, self._clock.monotonic())
        except Unreachable as error:
            return NodeView(last.address, last.numbers, str(error))
        except ValueError as error:
            return NodeView(last.address, last.numbers, f"its /metrics cannot be parsed: {error}")
        self._readings[last.address] = after
        if before is None:
            return NodeView(last.address, None)
        return NodeView(last.address, node_numbers(before, after, unix_s=self._clock.unix_ms() / 1000))


def scrape(address: str) -> str:
    """The text of a node's /metrics. Raises Unreachable with the reason."""
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.request import urlopen

    try:
        with urlopen(f"http://{address}/metrics", timeout=SCRAPE_TIMEOUT_S) as answer:
            body: bytes = answer.read(LONGEST_SCRAPE)
            return body.decode()
    except HTTPError as error:
        said = error.read(200).decode("utf-8", "replace").strip()
        raise Unreachable(f"answers {error.code} to /metrics: {said or error.reason}") from None
    except (HTTPException, UnicodeDecodeError):  # the content is not shown, because it may be anything
        raise Unreachable("does not speak HTTP; retrying") from None
    except (URLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise Unreachable(f"cannot be reached: {getattr(reason, 'strerror', None) or reason}; retrying") from None


# --- showing ----------------------------------------------------------------------------------------------------------
def _print(nodes: Nodes, interval: float, topics: int, *, lines: bool, forever: bool) -> None:
    """Prints a screen, or a line of JSON per node, once or for ever. The exit code is 2 if no node answered."""
    nodes.look()
    while True:
        time.sleep(interval)
        seen = nodes.look()
        if lines:
            for each in seen:
                print_json_line(as_json(each))
            sys.stdout.flush()
        else:
            _console().print(_screen(seen, interval, topics))
        if not forever:
            break
    if all(each.trouble for each in seen):
        raise typer.Exit(2)


def _live(nodes: Nodes, interval: float, topics: int) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        seen = nodes.look()
        while True:
            live.update(_screen(seen, interval, topics), refresh=True)
            time.sleep(interval)
            seen = nodes.look()


def _screen(seen: list[NodeView], interval: float, topics: int) -> RenderableType:
    away = sum(1 for each in seen if each.trouble)
    title = f"tidelog top: {len(seen)} node{'s' if len(seen) != 1 else ''}, every {interval:g} s"
    return screen(seen, title=f"{title}, {away} unreachable" if away else title, topics=topics)


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
