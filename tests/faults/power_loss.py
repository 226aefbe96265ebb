"""Records what a run does to its disk, and replays what a power loss may leave of it.

`RecordingFiles` is a `Files` that works on a real directory and records every operation. `Disk` replays such a list and
knows, after each operation, what is durable and what is only pending; `Disk.states` are the trees that a power loss at that
moment may leave:

- bytes written to a file since its last fsync: each write kept, dropped (a hole, or a shorter file) or torn (a prefix);
- a file's unsynced change of size: kept or undone;
- names created, renamed, linked or removed since the directory's last fsync: each kept or undone, independently.

This is deliberately stricter than any one file system: what holds here holds on all of them. Only the bytes of an fsynced
file and the names in an fsynced directory are durable. A rename is atomic.

Use: run a workload on a `RecordingFiles` (mark promises with `note`), then for each prefix of `files.operations` open what
`materialise` builds and compare it with the promises. `drop` names call sites whose fsyncs do nothing: if a run still
passes, it has an fsync too many or a check too few. `sites` lists them.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from storage_tiers import files as files_module
from storage_tiers.files import Buffer, OsFiles
from storage_tiers.hot import ballast as ballast_module

ROOT_NODE = 0
#: The site of everything that was durable before the run.
BEFORE = "before the run"


# --- what is recorded -------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Write:
    """`seam` is where the first of several gathered buffers ended, a likely place to tear; 0 for a single buffer."""

    node: int
    position: int
    data: bytes
    seam: int = 0


@dataclass(frozen=True, slots=True)
class Truncate:
    node: int
    size: int


@dataclass(frozen=True, slots=True)
class Add:
    """A new name of a file or directory, whose inode is `node`: a file was created or linked, or a directory was made."""

    parent: int
    name: str
    node: int
    directory: bool = False


@dataclass(frozen=True, slots=True)
class Remove:
    parent: int
    name: str
    node: int


@dataclass(frozen=True, slots=True)
class Rename:
    source: int
    source_name: str
    target: int
    target_name: str
    node: int


@dataclass(frozen=True, slots=True)
class Fsync:
    """An fsync of a file or a directory. `site` is the call site that requested it."""

    node: int
    site: str


@dataclass(frozen=True, slots=True)
class Note:
    """Not an operation: `value` is the program's promise from here on."""

    value: Any


Operation = Write | Truncate | Add | Remove | Rename | Fsync | Note


class RecordingFiles:
    """A `Files` over the real directory `root`, the only one that may be written. What is already there counts as durable."""

    def __init__(self, root: str) -> None:
        self.root = os.path.realpath(root)
        self.operations: list[Operation] = []
        self._files = OsFiles()
        self._names: dict[str, int] = {self.root: ROOT_NODE}
        self._fds: dict[int, int] = {}
        self._next_node = 1
        self._adopt(self.root)

    def _adopt(self, directory: str) -> None:
        for entry in sorted(os.scandir(directory), key=lambda each: each.name):
            node = self._names[entry.path] = self._new_node()
            self.operations.append(Add(self._names[directory], entry.name, node, entry.is_dir()))
            if entry.is_dir():
                self._adopt(entry.path)
            else:
                with open(entry.path, "rb") as file:
                    self.operations.append(Write(node, 0, file.read()))
                self.operations.append(Fsync(node, BEFORE))
        self.operations.append(Fsync(self._names[directory], BEFORE))

    def note(self, value: Any) -> None:
        self.operations.append(Note(value))

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, truncate: bool = False) -> int:
        path = self._path(path)
        is_new = not os.path.exists(path)
        fd = self._files.open(path, create=create, exclusive=exclusive, truncate=truncate)
        if is_new:
            self._names[path] = self._new_node()
            self.operations.append(Add(*self._entry(path), self._names[path]))
        elif truncate:
            self.operations.append(Truncate(self._names[path], 0))
        self._fds[fd] = self._names[path]
        return fd

    def close(self, fd: int) -> None:
        self._files.close(fd)

    def pwrite(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        written = self._files.pwrite(fd, buffers, position)
        seam = len(buffers[0]) if len(buffers) > 1 else 0
        self.operations.append(Write(self._fds[fd], position, b"".join(map(bytes, buffers)), seam))
        return written

    def truncate(self, fd: int, size: int) -> None:
        self._files.truncate(fd, size)
        self.operations.append(Truncate(self._fds[fd], size))

    def fsync(self, fd: int) -> None:
        self._files.fsync(fd)
        self.operations.append(Fsync(self._fds[fd], _call_site()))

    def fsync_dir(self, path: str) -> None:
        self._files.fsync_dir(path)
        self.operations.append(Fsync(self._names[self._path(path)], _call_site()))

    def rename(self, source: str, target: str) -> None:
        source, target = self._path(source), self._path(target)
        self._files.rename(source, target)
        node = self._names[source]
        self.operations.append(Rename(*self._entry(source), *self._entry(target), node))
        for path in [each for each in self._names if each == source or each.startswith(source + os.sep)]:
            self._names[target + path[len(source) :]] = self._names.pop(path)

    def link(self, source: str, target: str) -> None:
        source, target = self._path(source), self._path(target)
        self._files.link(source, target)
        self._names[target] = self._names[source]
        self.operations.append(Add(*self._entry(target), self._names[target]))

    def unlink(self, path: str) -> None:
        path = self._path(path)
        self._files.unlink(path)
        self.operations.append(Remove(*self._entry(path), self._names.pop(path)))

    def mkdir(self, path: str) -> None:
        path = self._path(path)
        is_new = not os.path.isdir(path)
        self._files.mkdir(path)
        if is_new:
            self._names[path] = self._new_node()
            self.operations.append(Add(*self._entry(path), self._names[path], directory=True))

    def rmdir(self, path: str) -> None:
        path = self._path(path)
        self._files.rmdir(path)
        self.operations.append(Remove(*self._entry(path), self._names.pop(path)))

    def _path(self, path: str) -> str:
        path = os.path.normpath(path)
        parent, name = os.path.split(path)
        if path != self.root:
            path = os.path.join(os.path.realpath(parent), name)
        assert path == self.root or path.startswith(self.root + os.sep), f"{path} lies outside of {self.root}"
        return path

    def _entry(self, path: str) -> tuple[int, str]:
        parent, name = os.path.split(path)
        return self._names[parent], name

    def _new_node(self) -> int:
        self._next_node += 1
        return self._next_node - 1


def _call_site() -> str:
    """The nearest caller outside this module; if that is a helper of the files module, also the caller of the helper."""
    frame: FrameType | None = sys._getframe(2)
    parts: list[str] = []
    while frame is not None:
        code = frame.f_code
        if code.co_filename == ballast_module.__file__:  # it only passes calls on
            frame = frame.f_back
            continue
        parts.append(f"{'/'.join(code.co_filename.split(os.sep)[-2:])}:{code.co_qualname}:{frame.f_lineno}")
        if code.co_filename != files_module.__file__:
            break
        frame = frame.f_back
    return " > ".join(reversed(parts))


def sites(operations: Sequence[Operation]) -> list[str]:
    """Every site that requested an fsync, in the order of first use."""
    found = dict.fromkeys(operation.site for operation in operations if isinstance(operation, Fsync))
    return [site for site in found if site != BEFORE]


# --- what may be left -------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class _File:
    durable: bytes = b""
    pending: list[Write | Truncate] = field(default_factory=list)


@dataclass(slots=True)
class _Directory:
    durable: dict[str, int] = field(default_factory=dict)
    pending: list[Add | Remove | Rename] = field(default_factory=list)


#: Path -> content below the root; None for a directory.
Tree = dict[str, bytes | None]
#: How much of each pending operation a power loss left: 0 nothing, 1 all, in between that fraction of a write.
Fate = dict[int, float]


class Disk:
    """The disk after a prefix of the operations; `apply` adds the next one."""

    def __init__(self, drop: Collection[str] = ()) -> None:
        self._drop = frozenset(drop)
        self._nodes: dict[int, _File | _Directory] = {ROOT_NODE: _Directory()}

    def apply(self, operation: Operation) -> None:
        match operation:
            case Write(node) | Truncate(node):
                self._file(node).pending.append(operation)
            case Add(parent, _, node, directory):
                self._nodes.setdefault(node, _Directory() if directory else _File())
                self._directory(parent).pending.append(operation)
            case Remove(parent):
                self._directory(parent).pending.append(operation)
            case Rename(source, _, target):
                self._directory(source).pending.append(operation)
                if target != source:
                    self._directory(target).pending.append(operation)
            case Fsync(node, site) if site not in self._drop:
                self._sync(node)

    def _sync(self, node: int) -> None:
        entry = self._nodes[node]
        if isinstance(entry, _File):
            entry.durable = _content(entry.durable, [(each, 1.0) for each in entry.pending])
            entry.pending = []
            return
        for operation in list(entry.pending):
            _rename_entries(operation, self._nodes)
            for other in self._nodes.values():
                if isinstance(other, _Directory):
                    other.pending = [each for each in other.pending if each is not operation]

    def pending(self) -> list[Write | Truncate | Add | Remove | Rename]:
        found: dict[int, Write | Truncate | Add | Remove | Rename] = {}
        for entry in self._nodes.values():
            for operation in entry.pending:
                found[id(operation)] = operation
        return list(found.values())

    def states(self, rng: random.Random, limit: int) -> Iterator[Tree]:
        """Trees that a power loss may leave now: the corner cases first, then random ones; at most `limit`, all different."""
        seen: set[tuple[tuple[str, bytes | None], ...]] = set()
        for fate in self._fates(rng, limit):
            tree = self.tree(fate)
            key = tuple(sorted(tree.items()))
            if key not in seen:
                seen.add(key)
                yield tree
            if len(seen) >= limit:
                return

    def _fates(self, rng: random.Random, limit: int) -> Iterator[Fate]:
        pending = self.pending()
        keys = [id(operation) for operation in pending]
        writes = [id(operation) for operation in pending if isinstance(operation, Write) and len(operation.data) > 1]
        yield dict.fromkeys(keys, 0.0)
        yield dict.fromkeys(keys, 1.0)
        singles: list[Fate] = [dict.fromkeys(keys, 1.0) | {key: 0.0} for key in keys]
        singles += [dict.fromkeys(keys, 0.0) | {key: 1.0} for key in keys]
        singles += [dict.fromkeys(keys, 1.0) | {key: rng.random()} for key in writes]
        names = [id(operation) for operation in pending if not isinstance(operation, Write | Truncate)]
        singles.append(dict.fromkeys(keys, 0.0) | dict.fromkeys(names, 1.0))
        singles.append(dict.fromkeys(keys, 1.0) | dict.fromkeys(names, 0.0))
        singles += self._torn_in_order(pending)
        rng.shuffle(singles)
        yield from singles
        for _ in range(limit if len(keys) > 1 else 0):
            fate: Fate = {}
            share = rng.choice((0.2, 0.5, 0.8))
            for key in keys:
                fate[key] = float(rng.random() < share)
                if key in writes and rng.random() < 0.1:
                    fate[key] = rng.random()
            yield fate

    @staticmethod
    def _torn_in_order(pending: Sequence[Write | Truncate | Add | Remove | Rename]) -> Iterator[Fate]:
        """All writes up to one that is torn at its seam, and none after it; names kept, changes of size kept or undone."""
        for torn in pending:
            if not isinstance(torn, Write) or not torn.seam:
                continue
            for sizes in (0.0, 1.0):
                fate, before = {}, True
                for operation in pending:
                    if operation is torn:
                        fate[id(operation)], before = torn.seam / len(torn.data), False
                    elif isinstance(operation, Truncate):
                        fate[id(operation)] = sizes
                    else:
                        fate[id(operation)] = float(before or not isinstance(operation, Write))
                yield fate

    def tree(self, fate: Fate) -> Tree:
        names = {node: dict(entry.durable) for node, entry in self._nodes.items() if isinstance(entry, _Directory)}
        order: dict[int, Add | Remove | Rename] = {}
        for entry in self._nodes.values():
            if isinstance(entry, _Directory):
                order.update((id(operation), operation) for operation in entry.pending)
        for key, operation in order.items():
            if fate[key]:
                _apply_entry(operation, names)
        tree: Tree = {}
        self._collect(ROOT_NODE, "", names, fate, tree)
        return tree

    def _collect(self, node: int, path: str, names: dict[int, dict[str, int]], fate: Fate, tree: Tree) -> None:
        for name, child in names[node].items():
            entry = self._nodes[child]
            where = os.path.join(path, name)
            if isinstance(entry, _Directory):
                tree[where] = None
                self._collect(child, where, names, fate, tree)
            else:
                tree[where] = _content(entry.durable, [(each, fate[id(each)]) for each in entry.pending])

    def _file(self, node: int) -> _File:
        entry = self._nodes[node]
        assert isinstance(entry, _File)
        return entry

    def _directory(self, node: int) -> _Directory:
        entry = self._nodes[node]
        assert isinstance(entry, _Directory)
        return entry


def _content(durable: bytes, pending: Sequence[tuple[Write | Truncate, float]]) -> bytes:
    content = bytearray(durable)
    for operation, kept in pending:
        if not kept:
            continue
        if isinstance(operation, Truncate):
            del content[operation.size :]
            content.extend(bytes(operation.size - len(content)))
            continue
        data = operation.data[: max(1, round(len(operation.data) * kept))]
        content.extend(bytes(max(0, operation.position - len(content))))
        content[operation.position : operation.position + len(data)] = data
    return bytes(content)


def _apply_entry(operation: Add | Remove | Rename, names: dict[int, dict[str, int]]) -> None:
    match operation:
        case Add(parent, name, node):
            names[parent][name] = node
        case Remove(parent, name, node):
            if names[parent].get(name) == node:
                del names[parent][name]
        case Rename(source, source_name, target, target_name, node):
            if names[source].get(source_name) == node:
                del names[source][source_name]
            names[target][target_name] = node


def _rename_entries(operation: Add | Remove | Rename, nodes: dict[int, _File | _Directory]) -> None:
    _apply_entry(operation, {node: entry.durable for node, entry in nodes.items() if isinstance(entry, _Directory)})


def materialise(tree: Tree, root: str) -> str:
    """Builds the tree in `root`, which is emptied first; returns `root`."""
    shutil.rmtree(root, ignore_errors=True)
    os.makedirs(root)
    for path, content in sorted(tree.items()):
        where = os.path.join(root, path)
        if content is None:
            os.makedirs(where, exist_ok=True)
        else:
            with open(where, "wb") as file:
                file.write(content)
    return root


def states_after(
    operations: Sequence[Operation], count: int, *, drop: Collection[str] = (), seed: int = 0, limit: int = 50
) -> Iterator[Tree]:
    """The trees that a power loss after `count` operations may leave, at most `limit`."""
    disk = Disk(drop)
    for operation in operations[:count]:
        disk.apply(operation)
    return disk.states(random.Random(f"{seed}/{count}"), limit)


def cuts(
    operations: Sequence[Operation], *, drop: Collection[str] = (), seed: int = 0, limit: int = 50
) -> Iterator[tuple[int, Any, Iterator[Tree]]]:
    """For each prefix of the run: (its length, the last promise noted in it, the trees that a power loss there may leave)."""
    disk = Disk(drop)
    promise: Any = None
    for count, operation in enumerate(operations, 1):
        disk.apply(operation)
        if isinstance(operation, Note):
            promise = operation.value
        yield count, promise, disk.states(random.Random(f"{seed}/{count}"), limit)
