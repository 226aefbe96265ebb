"""Finds the value of a config and its source, and makes the records of a change. `describing.py` shows configs to clients.

The precedence is Kafka's: the topic's own value, this broker's dynamic value, the cluster's dynamic default, the value set at
the node's start, the default. Within each of these levels, the key's synonyms apply in their order. The metadata image holds
the dynamic values.

Invariant: a change is checked as a whole before it makes a record, and makes all its records or none. If the rule of a later
version refuses a stored value, reading that value raises InvalidConfig.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, cast

from grpc_api.contract.topics import (
    AlterOp,
    ConfigAlteration,
    ConfigKind,
    ConfigSource,
    Resource,
    ResourceKind,
)
from service.configs import client_metrics
from service.configs.broker_keys import BROKER_KEYS
from service.configs.cleaner_rules import CLEANER_KEYS, check_cleaner
from service.configs.differences import DEFAULTS_WITH_STORE
from service.configs.keys import ConfigKey, ConfigScope, Dynamic, Synonym
from service.configs.topic_keys import TOPIC_KEYS
from service.configs.types import Value, check_length, is_number, refusal, split_list
from service.configs.values import BrokerConfigs, TopicConfigs
from service.metadata import records_pb2 as pb
from service.metadata.image import MetadataImage
from service.metadata.internal_topics import COORDINATED_TOPICS, INTERNAL_TOPICS
from service.metadata.planner import check_topic_name
from service.metadata.snapshot import config_record
from storage_tiers.errors import InvalidConfig, InvalidRequest, UnknownTopicOrPartition
from storage_tiers.hot.settings import LogSettings, TimestampType
from storage_tiers.records.recompress import target

#: The maximum lag of internal topics, in ms. Internal topics reach the bucket sooner than other topics. A restore from the
#: bucket alone loses their records up to this age.
INTERNAL_TIER_MAX_LAG_MS = 600_000
#: The maximum number of cached log settings, one for each distinct set of a topic's own configs.
MAX_CACHED_SETTINGS = 1024

#: The dynamic configs of one broker and of all brokers.
Inherited = tuple[Mapping[str, str], Mapping[str, str]]


class Candidate(NamedTuple):
    """A value that a key may take: the synonym that gives the value, the value in the synonym's unit, and its source."""

    synonym: Synonym
    value: Value
    source: ConfigSource


def check_static(values: Mapping[str, str]) -> Mapping[str, str]:
    """Checks the broker configs that are set at the node's start (`--set KEY=VALUE`). Raises InvalidConfig for an unknown key
    (with the nearest names), an illegal value, or a key that one of the node's own settings determines."""
    for name, text in values.items():
        key = BROKER_KEYS.get(name)
        if key.given_by:
            raise InvalidConfig(f"{name} is not set directly: the node's own setting {key.given_by} determines it")
        key.parse(text)
    protocols = "group.coordinator.rebalance.protocols"
    if protocols in values and "classic" not in split_list(values[protocols]):
        raise InvalidConfig("Disabling the 'classic' protocol is not supported.")
    slow, refuse = (
        float(values.get(name, str(BROKER_KEYS.get(name).default)))
        for name in ("tidelog.disk.watermark.slow", "tidelog.disk.watermark.refuse")
    )
    if not 0 < slow <= refuse:
        raise InvalidConfig(
            f"tidelog.disk.watermark.slow ({slow}) must be above 0 and not above tidelog.disk.watermark.refuse ({refuse})"
        )

    def value(name: str) -> Value | None:
        key = BROKER_KEYS.get(name)
        return key.parse(values[name]) if name in values else key.default

    check_cleaner(value)
    return dict(values)


class Resolver:
    """Configs as one broker sees them. Every method is a pure function of the given image.

    `static` holds the configs that were set at the node's start, checked by `check_static`, and the node's own settings as
    configs (such as `listeners`, `log.dirs`, `process.roles` and `tidelog.grpc.listener`).
    """

    def __init__(self, static: Mapping[str, str], *, node_id: int, has_store: bool) -> None:
        self.node_id = node_id
        texts = {
            "node.id": str(node_id),
            "broker.id": str(node_id),
            "remote.log.storage.system.enable": str(has_store).lower(),
            **static,
        }
        self._static: Mapping[str, Value] = {name: BROKER_KEYS.get(name).parse(text) for name, text in texts.items()}
        self._has_store = has_store
        self._cached_for: Inherited | None = None
        self._cached: dict[tuple[tuple[str, str], ...], LogSettings] = {}

    def inherited(self, image: MetadataImage) -> Inherited:
        """The dynamic configs that topics inherit: this broker's, and the defaults of all brokers."""
        return image.broker_config(self.node_id), image.broker_config(None)

    # --- values ---------------------------------------------------------------------------------------------------

    def broker(self, image: MetadataImage) -> BrokerConfigs:
        return BrokerConfigs(functools.partial(self.broker_value, image))

    def topic(self, image: MetadataImage, topic: str) -> TopicConfigs:
        """The topic's configs. A missing topic has the values that a new topic of that name would have."""

        def value(name: str) -> Value | None:
            found, source = self.topic_value(image, image.topic_config(topic), TOPIC_KEYS.get(name))
            if name == "tidelog.tier.max.lag.ms" and topic in INTERNAL_TOPICS and source is ConfigSource.DEFAULT:
                return INTERNAL_TIER_MAX_LAG_MS
            return found

        return TopicConfigs(value)

    def broker_value(self, image: MetadataImage, name: str) -> Value | None:
        """The value of a broker key. `BrokerConfigs` has the typed values."""
        holds = next(self.candidates(image, (Synonym(name),)), None)
        return None if holds is None else holds.value

    def is_tiered(self, image: MetadataImage, topic: str) -> bool:
        """Whether all of the topic's records go to the bucket."""
        found = self.topic(image, topic)
        return self._has_store and found.remote_storage_enable and not found.remote_log_copy_disable

    def log_settings(self, image: MetadataImage, topic: str) -> LogSettings:
        """The settings of a partition's log, as plain values. Local retention never exceeds total retention. A coordinator's
        log is never evicted, so that the coordinator loads without the store."""
        inherited, own = self.inherited(image), image.topic_config(topic)
        if inherited != self._cached_for:
            self._cached_for, self._cached = inherited, {}
        memo = tuple(sorted(own.items()))
        settings = self._cached.get(memo)
        if settings is None:
            if len(self._cached) >= MAX_CACHED_SETTINGS:
                self._cached.clear()
            settings = self._cached[memo] = self._log_settings(image, own)
        if topic in COORDINATED_TOPICS:
            return replace(settings, local_retention_ms=-1, local_retention_bytes=-1)
        return settings

    def _log_settings(self, image: MetadataImage, own: Mapping[str, str]) -> LogSettings:
        topic = TopicConfigs(lambda name: self.topic_value(image, own, TOPIC_KEYS.get(name))[0])
        broker = self.broker(image)
        levels = {
            "gzip": topic.compression_gzip_level,
            "lz4": topic.compression_lz4_level,
            "zstd": topic.compression_zstd_level,
        }
        return LogSettings(
            segment_bytes=topic.internal_segment_bytes or topic.segment_bytes,
            segment_ms=_segment_ms(topic),
            segment_jitter_ms=topic.segment_jitter_ms,
            segment_index_bytes=topic.segment_index_bytes,
            index_interval_bytes=topic.index_interval_bytes,
            retention_ms=topic.retention_ms,
            retention_bytes=max(-1, topic.retention_bytes),
            local_retention_ms=_smaller_bound(topic.local_retention_ms, topic.retention_ms),
            local_retention_bytes=_smaller_bound(topic.local_retention_bytes, topic.retention_bytes),
            max_message_bytes=topic.max_message_bytes,
            timestamp_type=cast(TimestampType, topic.message_timestamp_type),
            timestamp_before_max_ms=topic.message_timestamp_before_max_ms,
            timestamp_after_max_ms=topic.message_timestamp_after_max_ms,
            flush_messages=topic.flush_messages,
            flush_ms=topic.flush_ms,
            cleanup_compact="compact" in topic.cleanup_policy,
            cleanup_delete="delete" in topic.cleanup_policy,
            remote_storage_enable=self._has_store and topic.remote_storage_enable,
            remote_copy_disable=topic.remote_log_copy_disable,
            validate_records=topic.tidelog_record_validation == "full",
            producer_id_expiration_ms=broker.producer_id_expiration_ms,
            max_producers=broker.tidelog_partition_max_producer_ids,
            min_insync_replicas=topic.min_insync_replicas,
            stored_as=target(topic.compression_type, levels),
        )

    def topic_value(
        self, image: MetadataImage, own: Mapping[str, str], key: ConfigKey
    ) -> tuple[Value | None, ConfigSource]:
        if key.name in own:
            return key.parse(own[key.name]), ConfigSource.DYNAMIC_TOPIC
        for synonym, value, source in self.candidates(image, key.synonyms):
            if synonym.factor != 1:
                return cast(int, value) * synonym.factor if cast(int, value) >= 0 else -1, source
            return value, source
        return self._default(key), ConfigSource.DEFAULT

    def _default(self, key: ConfigKey) -> Value | None:
        if self._has_store and key.name in DEFAULTS_WITH_STORE:
            return DEFAULTS_WITH_STORE[key.name]
        return key.default

    def candidates(self, image: MetadataImage, synonyms: Sequence[Synonym]) -> Iterator[Candidate]:
        """All values that these broker keys give, the effective one first."""
        dynamic = (
            (image.broker_config(self.node_id), ConfigSource.DYNAMIC_BROKER),
            (image.broker_config(None), ConfigSource.DYNAMIC_DEFAULT_BROKER),
        )
        for texts, source in dynamic:
            for synonym in synonyms:
                if synonym.name in texts:
                    yield Candidate(synonym, BROKER_KEYS.get(synonym.name).parse(texts[synonym.name]), source)
        for synonym in synonyms:
            if synonym.name in self._static:
                yield Candidate(synonym, self._static[synonym.name], ConfigSource.STATIC_BROKER)
        for synonym in synonyms:
            default = self._default(BROKER_KEYS.get(synonym.name))
            if default is not None:
                yield Candidate(synonym, default, ConfigSource.DEFAULT)

    # --- changing -------------------------------------------------------------------------------------------------

    def check_new_topic(self, image: MetadataImage, configs: Mapping[str, str | None]) -> Mapping[str, str]:
        """Returns the configs of a new topic. Raises InvalidConfig in Kafka's words if one is illegal."""
        absent = sorted(name for name, text in configs.items() if text is None)
        if absent:
            raise InvalidConfig(f"Null value not supported for topic configs: {','.join(absent)}")
        given = {name: text for name, text in configs.items() if text is not None}
        self._check_topic(image, given)
        return given

    def alter(
        self,
        image: MetadataImage,
        resource: Resource,
        alterations: Sequence[ConfigAlteration],
        *,
        replace: bool = False,
        asked: int | None = None,
    ) -> tuple[pb.MetadataRecord, ...]:
        """The records of all alterations of an IncrementalAlterConfigs request (KIP-339). Raises InvalidRequest or
        InvalidConfig if one is invalid, UnknownTopicOrPartition for an unknown topic; then there are no records. Unchanged
        values make no record. `replace` has the semantics of AlterConfigs, which removes all configs that are not named.
        `asked` is the broker that received the request, by default this one."""
        if resource.kind is ResourceKind.CLIENT_METRICS:
            return client_metrics.alter(image, resource, alterations, replace=replace)
        self.check_resource(
            image, resource, "Node id must be an integer, but it is", "" if replace else " or empty string", asked=asked
        )
        if len({alteration.name for alteration in alterations}) != len(alterations):
            raise InvalidRequest("Error due to duplicate config keys")
        old = image.config(resource.kind, resource.name)
        new = {} if replace else dict(old)
        for alteration in alterations:
            text = self._altered(image, resource, old, alteration)
            if text is None:
                new.pop(alteration.name, None)
            else:
                new[alteration.name] = text
        if resource.kind is ResourceKind.TOPIC:
            self._check_topic(image, new)
        else:
            self._check_broker(resource, [a.name for a in alterations if a.op is not AlterOp.DELETE], new)
        touched = dict.fromkeys([alteration.name for alteration in alterations] + (list(old) if replace else []))
        changed = [name for name in touched if new.get(name) != old.get(name)]
        if resource.kind is ResourceKind.BROKER and not CLEANER_KEYS.isdisjoint(changed):
            self._check_cleaner(image, resource, new)
        return tuple(pb.MetadataRecord(config=config_record(resource, name, new.get(name))) for name in changed)

    def _altered(
        self, image: MetadataImage, resource: Resource, old: Mapping[str, str], alteration: ConfigAlteration
    ) -> str | None:
        name, op, text = alteration
        if op is AlterOp.DELETE:
            return None
        if text is None:
            raise InvalidRequest(f"Null value not supported for : {name}")
        check_length(name, text)
        key = (TOPIC_KEYS if resource.kind is ResourceKind.TOPIC else BROKER_KEYS).get(name)
        if op is AlterOp.SET:
            return text
        if key.kind is not ConfigKind.LIST:
            raise InvalidConfig(f"Can't {op.name} to key {name} because its type is not LIST.")
        if name in old:
            items = split_list(old[name])
        elif key.scope is ConfigScope.TOPIC:
            items = cast("tuple[str, ...]", self.topic_value(image, old, key)[0])
        else:
            items = cast("tuple[str, ...]", self.broker_value(image, name) or ())
        given = split_list(text)
        if op is AlterOp.SUBTRACT:
            taken = set(given)
            return ",".join(item for item in items if item not in taken)
        if not given:
            raise InvalidConfig(f"Configuration '{name}' values must not be empty.")
        return ",".join(dict.fromkeys((*items, *given)))

    def check_resource(
        self,
        image: MetadataImage,
        resource: Resource,
        not_a_number: str,
        or_empty: str = " or empty string",
        *,
        to_change: bool = True,
        asked: int | None = None,
    ) -> None:
        node_id = self.node_id if asked is None else asked
        if resource.kind is ResourceKind.TOPIC:
            if not resource.name and to_change:
                raise InvalidRequest("Default topic resources are not allowed.")
            check_topic_name(resource.name)
            if image.topic(resource.name) is None:
                raise UnknownTopicOrPartition(f"The topic '{resource.name}' does not exist.")
        elif resource.kind is not ResourceKind.BROKER:
            raise InvalidRequest(f"Unknown resource type {int(resource.kind)}")
        elif resource.name and not resource.name.isdecimal():
            raise InvalidRequest(f"{not_a_number}: {resource.name}")
        elif resource.name and not is_number(resource.name, node_id):
            raise InvalidRequest(f"Unexpected broker id, expected {node_id}{or_empty}, but received {resource.name}")

    def _check_topic(self, image: MetadataImage, own: Mapping[str, str]) -> None:
        """Checks each value, and the rules between values."""
        for name in own:
            TOPIC_KEYS.get(name)
        for name, text in own.items():
            TOPIC_KEYS.get(name).parse(text)

        def number(name: str) -> int:
            return cast(int, self.topic_value(image, own, TOPIC_KEYS.get(name))[0])

        lowest, highest = number("min.compaction.lag.ms"), number("max.compaction.lag.ms")
        if lowest > highest:
            raise InvalidConfig(
                f"conflict topic config setting min.compaction.lag.ms ({lowest}) > max.compaction.lag.ms ({highest})"
            )
        if not number("remote.storage.enable"):
            return
        if not self._has_store:
            raise InvalidConfig(
                "Tiered Storage functionality is disabled in the broker. "
                "Topic cannot be configured with remote log storage."
            )
        for local, whole in (("local.retention.ms", "retention.ms"), ("local.retention.bytes", "retention.bytes")):
            # Only the topic's own value can conflict, because a default yields to a shorter total retention.
            if local in own:
                _check_local_retention(local, number(local), whole, number(whole))

    def _check_broker(self, resource: Resource, changed: Sequence[str], values: Mapping[str, str]) -> None:
        keys = [BROKER_KEYS.get(name) for name in changed]
        fixed = [key.name for key in keys if key.dynamic is Dynamic.READ_ONLY]
        if fixed:
            raise InvalidRequest(f"Cannot update these configs dynamically: Set({', '.join(fixed)})")
        single = [key.name for key in keys if key.dynamic is Dynamic.PER_BROKER]
        if single and not resource.name:
            raise InvalidRequest(
                "Cannot update these configs at default cluster level, broker id must be specified: "
                f"Set({', '.join(single)})"
            )
        for key in keys:
            try:
                key.parse(values[key.name])
            except InvalidConfig as error:
                # Kafka returns INVALID_REQUEST for a broker's illegal value and INVALID_CONFIG for a topic's.
                raise InvalidRequest(str(error)) from None

    def _check_cleaner(self, image: MetadataImage, resource: Resource, new: Mapping[str, str]) -> None:
        """Checks the cleaner's configs that this broker would have with `new` as the resource's own."""
        own, everywhere = image.broker_config(self.node_id), image.broker_config(None)
        texts = {**everywhere, **new} if resource.name else {**new, **own}

        def value(name: str) -> Value | None:
            key = BROKER_KEYS.get(name)
            return key.parse(texts[name]) if name in texts else self._static.get(name, key.default)

        try:
            check_cleaner(value)
        except InvalidConfig as error:
            raise InvalidRequest(str(error)) from None


def _segment_ms(topic: TopicConfigs) -> int:
    """The maximum age of an open segment. A record is compacted only after its segment is closed (Kafka:
    LogConfig.maxSegmentMs)."""
    compacts = "compact" in topic.cleanup_policy
    return min(topic.segment_ms, topic.max_compaction_lag_ms) if compacts else topic.segment_ms


def _smaller_bound(local: int, whole: int) -> int:
    """The smaller of a local and a total bound; -1 if there is no bound. If the local bound is negative, the result is the
    total bound."""
    if whole < 0:
        return max(-1, local)
    return whole if local < 0 else min(local, whole)


def _check_local_retention(local: str, value: int, whole: str, bound: int) -> None:
    if value == -2 or bound == -1:
        return
    if value == -1:
        raise refusal(local, value, f"Value must not be -1 as {whole} value is set as {bound}.")
    if value > bound:
        raise refusal(local, value, f"Value must not be more than {whole} property value: {bound}")
