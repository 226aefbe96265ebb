"""fsck finds a wrong value in any field of any document, even when every checksum above it matches.

The cases come from the store that uses every feature, so a new field of the formats gets its cases automatically. UNTOLD
lists what the bucket cannot show, with the reason; anything else that fsck passes as sound fails here.
"""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from service.fsck.bucket import FsckScope, check_bucket
from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.documents import CHECKSUM, document
from storage_tiers.cold.manifest.model import Ids
from storage_tiers.cold.stores.memory import BlockingMemoryStore
from storage_tiers.records.checksum import crc32c
from tests.storage_tiers.cold.full_store import CLUSTER, EARLIER, GONE, NOW_MS, FullStore, ids_of

Path = tuple[str | int, ...]
HUGE = 1 << 62
#: Stands for the checksum that matches the content.
SEALED = object()
LISTS = ("segments", "removed", "tombstoned", "pins", "pages", "earlier", "recent")

_CLOCK = "a time by the writer's clock, which nothing else records"
_WHO = "who it was, nothing else records"
_WHICH_COMMIT = "another commit of the partition's could have done it as well"
_ORPHAN = "what it named is an orphan then, which is damage once it is older than the grace"
_RISES = "it may be any that is not below what depends on it"
_NEWER = "a newer writer's document, which this reader understands"
_OLDER = "a document that readers of format 1 would understand, which nothing else says"
_DELETED = "of a deleted partition nothing is left to compare it with"

#: Field -> (its mutations that are no damage or cannot be detected, why).
UNTOLD: Mapping[str, tuple[set[str], str]] = {
    "cluster.format": ({"one more", "huge"}, _NEWER),
    **{
        f"{kind}.least_reader": ({"one less"}, _OLDER)
        for kind in ("cluster", "topic", "manifest", "deleted manifest", "page")
    },
    "cluster.incarnation": ({"one more", "huge"}, _RISES),
    "cluster.holder.node_id": ({"one more", "one less", "huge"}, _WHO),
    "cluster.holder.directory_id": ({"another", "longer"}, _WHO),
    "cluster.holder.start_id": ({"another", "longer"}, _WHO),
    "topic.format": ({"one more", "huge"}, _NEWER),
    "topic.partitions": ({"one more"}, "a partition may have no manifest yet"),
    "topic.incarnation": ({"one less"}, _RISES),
    "topic.revision": ({"one more", "one less", "huge"}, "it only tells versions of the file apart"),
    "topic.configs.retention.ms": ({"another", "longer", "empty", "missing"}, "the bucket obeys no config"),
    "manifest.format": ({"one more", "huge"}, _NEWER),
    "manifest.committed_at": ({"one more", "one less", "huge"}, _CLOCK),
    "manifest.writer.node_id": ({"one more", "one less", "huge"}, _WHO),
    "manifest.writer.name": ({"another", "longer"}, _WHO),
    "manifest.writer.incarnation": ({"missing"}, "a maintainer outside of the cluster has none"),
    "manifest.leader_epoch": ({"one more", "one less", "huge"}, _RISES),
    "manifest.log_start": ({"one more", "one less"}, "any offset of the first segment may be log start"),
    "manifest.swept": ({"one more", "one less"}, "what was forgotten left nothing behind"),
    "manifest.pins": ({"without its first", "without its last"}, "a pin may be taken away"),
    "manifest.pins[].name": ({"another", "longer"}, "any name is one"),
    "manifest.pins[].log_start": ({"one more"}, "any offset of the first segment may be log start"),
    "manifest.segments": ({"without its first"}, _ORPHAN),
    "manifest.segments[].added[0]": ({"one more", "one less"}, _WHICH_COMMIT),
    "manifest.segments[].added[1]": ({"one more", "one less", "huge"}, _CLOCK),
    "manifest.removed": ({"without its first", "without its last"}, _ORPHAN),
    "manifest.removed[].added[0]": ({"one more", "one less"}, _WHICH_COMMIT),
    "manifest.removed[].added[1]": ({"one more", "one less", "huge"}, _CLOCK),
    "manifest.removed[].removed[0]": ({"one more", "one less"}, _WHICH_COMMIT),
    "manifest.removed[].removed[1]": ({"one more", "one less", "huge"}, _CLOCK),
    "manifest.tombstoned": ({"without its first", "without its last"}, _ORPHAN),
    "manifest.tombstoned[].at[0]": ({"one more", "one less"}, _WHICH_COMMIT),
    "manifest.tombstoned[].at[1]": ({"one more", "one less", "huge"}, _CLOCK),
    "page.format": ({"one more", "huge"}, _NEWER),
    "page.segments[].added[0]": ({"one more", "one less"}, _WHICH_COMMIT),
    "page.segments[].added[1]": ({"one more", "one less", "huge"}, _CLOCK),
    "page.removed[].added[0]": ({"one more", "one less"}, _WHICH_COMMIT),
    "page.removed[].added[1]": ({"one more", "one less", "huge"}, _CLOCK),
    "page.removed[].removed[0]": ({"one more", "one less"}, _WHICH_COMMIT),
    "page.removed[].removed[1]": ({"one more", "one less", "huge"}, _CLOCK),
    "deleted manifest.format": ({"one more", "huge"}, _NEWER),
    "deleted manifest.committed_at": ({"one more", "one less", "huge"}, _CLOCK),
    "deleted manifest.writer.node_id": ({"one more", "one less", "huge"}, _WHO),
    "deleted manifest.writer.name": ({"another", "longer"}, _WHO),
    "deleted manifest.writer.incarnation": ({"missing"}, "a maintainer outside of the cluster has none"),
    "deleted manifest.leader_epoch": ({"one more", "huge"}, _DELETED),
    "deleted manifest.log_start": ({"one more"}, _DELETED),
    "deleted manifest.end": ({"one more", "one less", "huge"}, _DELETED),
    "deleted manifest.last_record_epoch": ({"one less"}, _DELETED),
    "deleted manifest.swept": ({"one more"}, _DELETED),
    "deleted manifest.sidecar": ({"missing"}, "it is null, which says the same"),
}


class Place(NamedTuple):
    """One document in the store; `ids` is set for a manifest page, whose manifest must be rewritten with it."""

    kind: str
    key: str
    ids: Ids | None = None


PLACES = (
    Place("cluster", keys.cluster_key(CLUSTER)),
    Place("topic", keys.topic_file_key(CLUSTER, "flights")),
    Place("topic", keys.topic_file_key(CLUSTER, "gone")),
    *(Place("manifest", ids_of(partition).manifest_key) for partition in (1, 2, 3, 4)),
    Place("deleted manifest", ids_of(0, "gone", GONE).manifest_key),
    Place("deleted manifest", ids_of(0, "flights", EARLIER).manifest_key),
)


def stored(store: BlockingMemoryStore, key: str) -> Any:
    data = store.get(key).data
    return json.loads(gzip.decompress(data) if key.endswith(".gz") else data)


def leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    """The paths of every scalar and every list, at any depth."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from leaves(item, (*path, name))
    elif isinstance(value, list):
        yield path
        for number, item in enumerate(value):
            yield from leaves(item, (*path, number))
    else:
        yield path


def name_of(kind: str, path: Path) -> str:
    """The field's name without list indexes; `manifest.segments[].sections.index[1]` keeps those of pairs and spans."""
    text = kind
    for at, step in enumerate(path):
        if isinstance(step, str):
            text += f".{step}"
        elif path[at - 1] in LISTS and (path[at - 1] != "removed" or at < 3):  # items of `removed` have such a pair
            text += "[]"
        else:
            text += f"[{step}]"
    return text


def wrong_values(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, bool):
        yield "flipped", not value
        yield "of another type", "true"
    elif isinstance(value, int):
        yield "one more", value + 1
        yield "one less", value - 1
        yield "huge", HUGE
        yield "negative", -7
        yield "of another type", str(value)
    elif isinstance(value, str):
        yield "another", ("x" if value[:1] != "x" else "y") + value[1:]
        yield "longer", value + "x"
        yield "empty", ""
        yield "of another type", 7
    elif isinstance(value, list):
        yield "of another type", "x"
        if value:
            yield "without its first", value[1:]
            yield "without its last", value[:-1]
            yield "with its first twice", [value[0], *value]
    elif value is None:
        yield "of another type", "x"
        yield "something", 3
    yield "missing", ...


def set_at(whole: Any, path: Path, value: Any) -> None:
    for step in path[:-1]:
        whole = whole[step]
    if value is ...:
        del whole[path[-1]]
    else:
        whole[path[-1]] = value


def get_at(whole: Any, path: Path) -> Any:
    for step in path:
        whole = whole[step]
    return whole


def written(fields: Any) -> bytes:
    """The document's bytes, with a new checksum unless the checksum itself was mutated."""
    data = document({name: value for name, value in fields.items() if name != CHECKSUM})
    seal = json.loads(data)[CHECKSUM]
    if CHECKSUM not in fields:
        return data[: data.rindex(b",")] + b"\n}\n"
    said = fields[CHECKSUM]
    return data if said is SEALED else data.replace(str(seal).encode(), json.dumps(said).encode())


class Mutated:
    """Writes documents and recomputes every checksum above them; `undo` restores what was there."""

    def __init__(self, store: BlockingMemoryStore) -> None:
        self.store = store
        self._before: dict[str, bytes] = {}

    def put(self, key: str, data: bytes) -> None:
        self._before.setdefault(key, self.store.get(key).data)
        self.store.put(key, data)

    def put_document(self, place: Place, fields: Any) -> None:
        if place.kind != "page":
            self.put(place.key, written(fields))
            return
        assert place.ids is not None
        data = gzip.compress(written(fields))
        self.put(place.key, data)
        manifest = stored(self.store, place.ids.manifest_key)
        for ref in manifest["pages"]:
            if place.ids.prefix + ref["key"] == place.key:
                ref.update(length=len(data), crc32c=crc32c(data))
        self.put(place.ids.manifest_key, document(manifest))

    def undo(self) -> None:
        for key, data in self._before.items():
            self.store.put(key, data)
        self._before.clear()


def all_places(store: BlockingMemoryStore) -> Iterator[Place]:
    yield from PLACES
    for ids in (ids_of(1),):
        for ref in stored(store, ids.manifest_key)["pages"]:
            yield Place("page", ids.prefix + ref["key"], ids)


def rows(store: BlockingMemoryStore, last: bool) -> dict[str, list[tuple[Place, Path]]]:
    """Where each field occurs, by its name: the first occurrence in each document, or at most the first two and the last."""
    found: dict[str, list[tuple[Place, Path]]] = {}
    for place in all_places(store):
        of_place: dict[str, list[tuple[Place, Path]]] = {}
        for path in leaves(stored(store, place.key)):
            of_place.setdefault(name_of(place.kind, path), []).append((place, path))
        for name, where in of_place.items():
            found.setdefault(name, []).extend(where[:1] if not last else where[:2] + where[2:][-1:])
    return found


def is_damaged(store: BlockingMemoryStore) -> bool:
    return check_bucket(store, FsckScope(), now_ms=NOW_MS).damaged


def test_the_store_of_every_feature_is_sound(full: FullStore) -> None:
    assert check_bucket(full.store, FsckScope(), now_ms=NOW_MS + (1 << 40)).findings == []


KINDS = ("cluster", "topic", "manifest", "deleted manifest", "page")


@pytest.mark.parametrize("kind", KINDS)
def test_every_wrong_value_is_found(full: FullStore, kind: str) -> None:
    missed, expected = missed_and_expected(full, kind, last=False)
    assert {name: what for name, what in missed.items() if not what <= expected.get(name, set())} == {}


@pytest.mark.faults
@pytest.mark.parametrize("kind", KINDS)
def test_every_wrong_value_is_found_where_a_field_occurs_again(full: FullStore, kind: str) -> None:
    missed, expected = missed_and_expected(full, kind, last=True)
    assert {name: what for name, what in missed.items() if not what <= expected.get(name, set())} == {}
    assert expected.keys() <= missed.keys(), "a finding made now needs no exception"


def missed_and_expected(full: FullStore, kind: str, *, last: bool) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """The mutations that fsck passes as sound, and those that UNTOLD lists, by field."""
    mutated = Mutated(full.store)
    missed: dict[str, set[str]] = {}
    for name, places in rows(full.store, last).items():
        for place, path in places:
            if place.kind == kind:
                missed.setdefault(name, set()).update(_untold_at(full.store, mutated, place, path))
    missed = {name: what for name, what in missed.items() if what}
    return missed, {name: what for name, (what, _) in UNTOLD.items() if name.split(".")[0] == kind}


def _untold_at(store: BlockingMemoryStore, mutated: Mutated, place: Place, path: Path) -> Iterator[str]:
    whole = stored(store, place.key)
    for what, wrong in wrong_values(get_at(whole, path)):
        changed = copy.deepcopy(whole)
        set_at(changed, path, wrong)
        if changed == whole:
            continue
        if path != (CHECKSUM,):
            changed[CHECKSUM] = SEALED
        mutated.put_document(place, changed)
        try:
            if not is_damaged(store):
                yield what
        finally:
            mutated.undo()
