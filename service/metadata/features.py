"""The cluster's feature levels (KIP-584), under Kafka's names: the levels that this software supports, and changes of the
current levels.

`metadata.version` names the Kafka release whose requests are answered (29 is 4.2-IV1), not a format of this node.
`transaction.version` decides how clients end transactions. At level 2 (KIP-890), clients that know it get a new epoch for each
transaction; below it, clients add partitions themselves. Requests of every level are served whatever the current level is. All
other features of that release are known and off. They cannot be raised, because nothing here implements them.

Pure. Checks, their order and messages are those of Kafka 4.2's FeatureControlManager. Invariant: a level is current only if
every registered broker has registered support for it. A feature without a record has its lowest level. So if older metadata has
no levels, clients keep a level that is sure to work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from grpc_api.contract.features import Feature, FeatureChange, FeatureUpdate
from service.metadata import records_pb2 as pb
from service.metadata.image import MetadataImage
from storage_tiers.errors import InvalidUpdateVersion


class LevelRange(NamedTuple):
    """The levels of a feature that this version supports, both bounds included."""

    lowest: int
    highest: int


TRANSACTION_VERSION = "transaction.version"
_OFF = LevelRange(0, 0)
#: The levels that this software supports, by feature, in Kafka's order.
SUPPORTED: Mapping[str, LevelRange] = {
    "group.version": _OFF,
    "kraft.version": _OFF,
    "metadata.version": LevelRange(29, 29),
    "share.version": _OFF,
    "streams.version": _OFF,
    TRANSACTION_VERSION: LevelRange(0, 2),
    "eligible.leader.replicas.version": _OFF,
}


def features(image: MetadataImage) -> list[Feature]:
    return [Feature(name, *levels, current(image, name)) for name, levels in SUPPORTED.items()]


def current(image: MetadataImage, name: str) -> int:
    return image.features.get(name, SUPPORTED.get(name, _OFF).lowest)


def newest() -> tuple[pb.MetadataRecord, ...]:
    """Returns the records of a new cluster's levels: the highest of each feature."""
    return tuple(_record(name, levels.highest) for name, levels in SUPPORTED.items() if levels.highest > 0)


def supported_records() -> list[pb.SupportedFeatureRecord]:
    """The features that a broker of this software registers."""
    return [
        pb.SupportedFeatureRecord(name=name, lowest=levels.lowest, highest=levels.highest)
        for name, levels in SUPPORTED.items()
        if levels.highest > 0
    ]


def update(image: MetadataImage, updates: Iterable[FeatureUpdate], node_id: int) -> tuple[pb.MetadataRecord, ...]:
    """Returns the records of all updates. Each update is compared with the level before the request. If two updates name the
    same feature, the last one wins. Raises InvalidUpdateVersion."""
    levels: dict[str, int] = {}
    for each in updates:
        problem = _problem(image, each, node_id)
        if problem is not None:
            raise InvalidUpdateVersion(
                "The update failed for all features since the following feature had an error: "
                f"Invalid update version {each.level} for feature {each.name}. {problem}"
            )
        levels[each.name] = each.level
    return tuple(_record(name, level) for name, level in levels.items() if level != current(image, name))


def _problem(image: MetadataImage, update: FeatureUpdate, node_id: int) -> str | None:
    """Returns the reason why the level cannot be set, or None."""
    name, level, change = update
    if change is None:
        return "The controller does not support the given upgrade type."
    if level < 0:
        return "A feature version cannot be less than 0."
    known = SUPPORTED.get(name)
    if known is None:
        return f"Feature {name} not found." if level == 0 else _no_feature(f"Local controller {node_id}")
    if not known.lowest <= level <= known.highest:
        return f"Local controller {node_id} only supports versions {known.lowest}-{known.highest}"
    problem = _unsupported(image, name, level)
    if problem is not None:
        return problem
    before = current(image, name)
    if level < before and change is FeatureChange.UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade."
        )
    if level > before and change is not FeatureChange.UPGRADE:
        return "Can't downgrade to a newer version."
    return None


def _unsupported(image: MetadataImage, name: str, level: int) -> str | None:
    """Names a broker that does not support the level; None if all do. A broker that has registered no features supports
    none."""
    for broker in image.brokers.values():
        found = [LevelRange(each.lowest, each.highest) for each in broker.features if each.name == name]
        levels = found[0] if found else _OFF
        if not levels.lowest <= level <= levels.highest:
            what = f"Broker {broker.broker_id}"
            if levels.highest == 0:
                return _no_feature(what)
            return f"{what} only supports versions {levels.lowest}-{levels.highest}"
    return None


def _no_feature(what: str) -> str:
    return f"{what} does not support this feature."


def _record(name: str, level: int) -> pb.MetadataRecord:
    return pb.MetadataRecord(feature_level=pb.FeatureLevelRecord(name=name, level=level))
