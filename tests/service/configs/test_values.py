"""Configs as attributes: the generated module is current, and agrees with the registry on each key."""

from __future__ import annotations

import pytest

from service.configs.broker_keys import BROKER_KEYS
from service.configs.keys import ConfigEffect
from service.configs.resolve import Resolver
from service.configs.topic_keys import TOPIC_KEYS
from service.configs.typed import MODULE, attribute, render
from service.configs.types import Value
from service.metadata.image import MetadataImage

EMPTY = MetadataImage()
NODE = Resolver({}, node_id=1, has_store=False)


def test_the_module_is_current() -> None:
    assert MODULE.read_text(encoding="utf-8") == render(BROKER_KEYS, TOPIC_KEYS), (
        "the registry has changed: run `make docs`"
    )


@pytest.mark.parametrize("has_store", [False, True])
def test_each_attribute_is_of_the_type_of_its_default(has_store: bool) -> None:
    node = Resolver({}, node_id=1, has_store=has_store)
    for values, keys in ((node.broker(EMPTY), BROKER_KEYS), (node.topic(EMPTY, "t"), TOPIC_KEYS)):
        for key in keys:
            if key.effect is ConfigEffect.HONOURED and not key.given_by:
                found: Value | None = getattr(values, attribute(key.name))
                assert found is None if key.default is None else type(found) is type(key.default), key.name


def test_nothing_can_be_read_that_has_no_effect() -> None:
    broker, topic = NODE.broker(EMPTY), NODE.topic(EMPTY, "t")
    assert not hasattr(topic, "unclean_leader_election_enable") and not hasattr(topic, "preallocate")
    assert not hasattr(broker, "log_dirs") and not hasattr(broker, "num_partitons")
