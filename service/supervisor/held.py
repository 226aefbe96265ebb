"""Refuses a start that leaves out a broker with partitions, since those partitions would have no leader."""

from __future__ import annotations

import os
from pathlib import Path

from service.settings.node_settings import NodeSettings
from service.supervisor.plan import BROKERS_FOLDER, ids_of
from storage_tiers.errors import InvalidConfig
from storage_tiers.hot.layout import parse_partition


def check_none_left_out(settings: NodeSettings, brokers: int) -> None:
    """Raises InvalidConfig if a broker that has partitions in the data directory is not among the brokers to start."""
    wanted = ids_of(settings, brokers)
    left_out = [held for held in _holders(Path(settings.data_dir)) if held not in wanted]
    if not left_out:
        return
    last, first = max(left_out), settings.node_id
    folder = Path(settings.data_dir) / BROKERS_FOLDER / str(last)
    if last < first:
        raise InvalidConfig(
            f"broker {last} holds partitions in {folder}, and --node-id {first} leaves it out; start with the --node-id "
            "that the first broker had"
        )
    raise InvalidConfig(
        f"broker {last} holds partitions in {folder}, and --brokers {brokers} leaves it out; start with --brokers "
        f"{last - first + 1}; before you start fewer, run `tidelog cluster drain {last} --execute`"
    )


def _holders(data_dir: Path) -> list[int]:
    try:
        ids = [int(name) for name in os.listdir(data_dir / BROKERS_FOLDER) if name.isdecimal()]
    except OSError:  # one broker so far
        return []
    return [each for each in ids if any(map(parse_partition, os.listdir(data_dir / BROKERS_FOLDER / str(each))))]
