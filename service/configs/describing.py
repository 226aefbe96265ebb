"""Configs as clients see them: each with its value, its source, and the synonyms that may give it a value.

Topics with equal configs share one description, because a topic has more than thirty configs, and a client may request those of
thousands of topics. Invariant: a description depends only on the given image, and not on earlier calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grpc_api.contract.topics import ConfigEntry, ConfigSource, ConfigSynonym, Resource, ResourceKind
from service.configs.broker_keys import BROKER_KEYS
from service.configs.keys import ConfigKey, Dynamic, Synonym
from service.configs.resolve import INTERNAL_TIER_MAX_LAG_MS, Inherited, Resolver
from service.configs.topic_keys import TOPIC_KEYS
from service.configs.types import Value, format_value
from service.metadata.image import MetadataImage
from service.metadata.internal_topics import INTERNAL_TOPICS

#: The defaults of internal topics. A coordinator's log stays on the local disk regardless of its configs.
INTERNAL_DEFAULTS: Mapping[str, Value] = {
    "tidelog.tier.max.lag.ms": INTERNAL_TIER_MAX_LAG_MS,
    "local.retention.ms": -1,
    "local.retention.bytes": -1,
}

#: The maximum number of cached descriptions; each takes tens of kilobytes.
MAX_CACHED_DESCRIPTIONS = 64


class ConfigDescriptions:
    """Describes the configs of a resolver. Every method is a pure function of the given image."""

    def __init__(self, configs: Resolver) -> None:
        self._configs = configs
        self._described_for: Inherited | None = None
        self._described: dict[tuple[tuple[str, str], ...], tuple[ConfigEntry, ...]] = {}
        self._described_broker: dict[bool, tuple[ConfigEntry, ...]] = {}

    def _forget_outdated(self, image: MetadataImage) -> None:
        """Clears the caches if the brokers' configs have changed."""
        inherited = self._configs.inherited(image)
        if inherited != self._described_for:
            self._described_for = inherited
            self._described, self._described_broker = {}, {}

    def describe(
        self, image: MetadataImage, resource: Resource, names: Sequence[str] | None = None
    ) -> Sequence[ConfigEntry]:
        """All configs of a topic or of this broker, or those in `names` that exist, ordered by name. The broker "" stands for
        the dynamic defaults of all brokers. Raises UnknownTopicOrPartition, InvalidTopic or InvalidRequest for a missing
        resource."""
        self._configs.check_resource(image, resource, "Broker id must be an integer, but it is", to_change=False)
        if resource.kind is ResourceKind.TOPIC:
            entries = self.describe_new_topic(image, image.topic_config(resource.name))
            if resource.name in INTERNAL_TOPICS:
                entries = [_internal(entry) for entry in entries]
        else:
            entries = self._describe_broker(image, everywhere=not resource.name)
        if names is None:
            return entries
        wanted = set(names)
        return [entry for entry in entries if entry.name in wanted]

    def describe_new_topic(self, image: MetadataImage, configs: Mapping[str, str]) -> Sequence[ConfigEntry]:
        """The description of a topic created with `configs`, for CreateTopics. Topics with equal configs
        share one object."""
        self._forget_outdated(image)
        memo = tuple(sorted(configs.items()))
        entries = self._described.get(memo)
        if entries is None:
            if len(self._described) >= MAX_CACHED_DESCRIPTIONS:
                self._described.clear()
            rows = (key for key in TOPIC_KEYS if not key.hidden or key.name in configs)
            entries = self._described[memo] = tuple(self._describe_topic_key(image, configs, key) for key in rows)
        return entries

    def _describe_broker(self, image: MetadataImage, *, everywhere: bool) -> Sequence[ConfigEntry]:
        self._forget_outdated(image)
        entries = self._described_broker.get(everywhere)
        if entries is None:
            rows = [self._describe_broker_key(image, key, everywhere=everywhere) for key in BROKER_KEYS]
            entries = self._described_broker[everywhere] = tuple(entry for entry in rows if entry is not None)
        return entries

    def _describe_topic_key(self, image: MetadataImage, own: Mapping[str, str], key: ConfigKey) -> ConfigEntry:
        value, _ = self._configs.topic_value(image, own, key)
        synonyms = self._synonyms(image, key.synonyms, key.synonyms[0].name) if key.synonyms else []
        if key.name in own:
            synonyms.insert(0, ConfigSynonym(key.name, format_value(value), ConfigSource.DYNAMIC_TOPIC))
        source = synonyms[0].source if synonyms else ConfigSource.DEFAULT
        return _entry(key, format_value(value), source, synonyms, read_only=False)

    def _describe_broker_key(self, image: MetadataImage, key: ConfigKey, *, everywhere: bool) -> ConfigEntry | None:
        synonyms = self._synonyms(image, key.synonyms, key.name)
        if key.only_when_set and all(s.source is ConfigSource.DEFAULT for s in synonyms):
            return None
        if everywhere:
            synonyms = [s for s in synonyms if s.source is ConfigSource.DYNAMIC_DEFAULT_BROKER]
            if not synonyms:
                return None
        source = synonyms[0].source if synonyms else ConfigSource.DEFAULT
        value = synonyms[0].value if everywhere else format_value(self._configs.broker_value(image, key.name))
        return _entry(key, value, source, synonyms, read_only=key.dynamic is Dynamic.READ_ONLY)

    def _synonyms(self, image: MetadataImage, synonyms: Sequence[Synonym], first: str) -> list[ConfigSynonym]:
        """As in Kafka, the list begins with the synonym that has the described key's own name."""
        found: list[ConfigSynonym] = []
        for synonym, value, source in self._configs.candidates(image, synonyms):
            if found or synonym.name == first:
                key = BROKER_KEYS.get(synonym.name)
                shown = None if key.sensitive else format_value(value)
                found.append(ConfigSynonym(synonym.name, shown, source))
        return found


def _entry(
    key: ConfigKey, value: str | None, source: ConfigSource, synonyms: Sequence[ConfigSynonym], *, read_only: bool
) -> ConfigEntry:
    documentation = key.documentation
    if key.reason:
        documentation += f" ({key.effect.value.capitalize()}: {key.reason}.)"
    return ConfigEntry(
        key.name,
        None if key.sensitive else value,
        source,
        key.kind,
        read_only=read_only,
        sensitive=key.sensitive,
        synonyms=tuple(synonyms),
        documentation=documentation,
    )


def _internal(entry: ConfigEntry) -> ConfigEntry:
    """The entry for an internal topic."""
    if entry.source is not ConfigSource.DEFAULT or entry.name not in INTERNAL_DEFAULTS:
        return entry
    value = format_value(INTERNAL_DEFAULTS[entry.name])
    return entry._replace(value=value, synonyms=[each._replace(value=value) for each in entry.synonyms])
