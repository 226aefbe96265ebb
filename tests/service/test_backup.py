"""The commands of docs/production.md that copy a bucket beside a running node, run on a directory store. Whatever the node does
between the commands, the copy is sound and restores what the copied manifests name."""

from __future__ import annotations

import fnmatch
import itertools
import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.service.cli.support import tidelog
from tests.support.node import ROOT, Node

PAGE = (ROOT / "docs" / "production.md").read_text()
COMMANDS = [shlex.split(line) for line in re.findall(r"^ *(aws s3 sync .*)$", PAGE, re.M)]
#: A topic whose name is part of the layout must not confuse the patterns.
TOPICS = ("orders", "manifests")


def sync(command: Sequence[str], source: Path, target: Path) -> None:
    """`aws s3 sync`: of the filters that match, the last one decides; `*` also matches slashes."""
    for path in sorted(each for each in source.rglob("*") if each.is_file()):
        name = str(path.relative_to(source))
        taken = True
        for option, pattern in itertools.pairwise(command):
            if option in ("--include", "--exclude") and fnmatch.fnmatchcase(name, pattern):
                taken = option == "--include"
        if taken:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target / name)


def more(node: Node) -> None:
    """Stops and starts the node, produces five more records to each topic and offloads them."""
    node.stop()
    node.start()
    for topic in TOPICS:
        assert tidelog("produce", topic, "-b", node.kafka, stdin="record\n" * 5).code == 0
        assert tidelog("topic", "seal", topic, "--wait", "-b", node.kafka).code == 0


def test_a_copy_made_beside_a_running_node_is_sound_and_can_be_restored(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with Node(tmp_path) as node:
        more(node)
        for command in COMMANDS:
            sync(command, node.store_path, copy)
            more(node)
            assert tidelog("topic", "create", f"new-{node.pid}", "-b", node.kafka).code == 0
    assert COMMANDS

    checked = tidelog("fsck", "--store", copy, "--json")
    assert checked.code == 0, checked.out
    (cluster,) = (each.parent.name for each in copy.glob("*/cluster.json"))
    restored = tidelog("restore", cluster, "--store", copy, "--data-dir", tmp_path / "restored")
    assert restored.code == 0, restored.err
    assert all(f"{topic}-0: offsets [0, 5)" in restored.out for topic in TOPICS)
