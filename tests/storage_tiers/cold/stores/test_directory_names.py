"""Keys map one to one to paths inside the store's root, and no file sits where another key needs a directory."""

from __future__ import annotations

import os

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from storage_tiers.cold.stores.directory_names import (
    object_path,
    parse_file,
    parse_folder,
    upload_path,
)
from storage_tiers.errors import StoreRefused

ROOT = "/store"

#: Slashes, dots, percent signs and our suffixes are frequent, because they could make two keys collide.
components = st.one_of(
    st.sampled_from(
        ["", ".", "..", "a", "a%", "%", "%e", "%2E", "a.json", "a.json%", "%locks", "x%up-0123456789abcdef"]
    ),
    st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), max_size=12),
)
keys = st.lists(components, min_size=1, max_size=4).map("/".join).filter(bool)


def key_of(path: str) -> str:
    *folders, last = os.path.relpath(path, ROOT).split(os.sep)
    parsed = parse_file(last)
    assert parsed is not None and parsed.token is None
    names = [parse_folder(folder) for folder in folders]
    return "/".join([*(name for name in names if name is not None), parsed.component])


@given(keys)
def test_the_key_is_derived_from_the_path(key: str) -> None:
    path = object_path(ROOT, key)
    assert os.path.normpath(path) == path and path.startswith(ROOT + os.sep)
    assert key_of(path) == key


@given(keys, keys)
def test_two_keys_never_meet(first: str, second: str) -> None:
    assume(first != second)
    one, other = object_path(ROOT, first), object_path(ROOT, second)
    assert one != other
    assert not other.startswith(one + os.sep), "a file where the other key needs a directory"


@given(keys)
def test_an_unfinished_upload_is_distinguished_from_objects(key: str) -> None:
    name = os.path.basename(upload_path(ROOT, key, "0123456789abcdef"))
    parsed = parse_file(name)
    assert parsed is not None
    assert parsed.component == key.rpartition("/")[2] and parsed.token == "0123456789abcdef"


@pytest.mark.parametrize("key", ["cluster.json", "topics/a.b/x/00.log", "p/00-01.json.gz", "0.idx"])
def test_our_own_keys_are_their_paths(key: str) -> None:
    assert object_path(ROOT, key) == f"{ROOT}/{key}"


@pytest.mark.parametrize("key", ["a/" + "ж" * 130, "a/" + "b" * 236, "c" * 256 + "/b"])
def test_names_too_long_for_a_file_system_are_refused(key: str) -> None:
    with pytest.raises(StoreRefused, match="long"):
        object_path(ROOT, key)


@pytest.mark.parametrize("topic", ["t" * 249, "t" * 245 + ".log"])
def test_the_longest_topic_has_its_folder(topic: str) -> None:
    assert len(os.path.basename(os.path.dirname(object_path(ROOT, f"topics/{topic}/topic.json")))) <= 255
