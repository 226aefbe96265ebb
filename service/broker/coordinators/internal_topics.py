"""Creates a coordinator's topic when a client first looks for a coordinator, and maps ids of groups or transactions to its
partitions.

Invariant: one creation at a time. As in Kafka, the first request fails with a retriable error while the topic is created.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from grpc_api.contract.coordinator_errors import CoordinatorNotAvailable
from grpc_api.contract.topics import NewTopic
from service.coordination.coordinator_runtime import partition_of
from service.coordination.record_fields import MAX_STRING_BYTES
from service.metadata.commands import CreateTopic
from service.metadata.controller import Commands
from service.metadata.following import Metadata
from service.metadata.internal_topics import (
    CONSUMER_OFFSETS,
    TRANSACTION_STATE,
    consumer_offsets_configs,
    transaction_state_configs,
)
from service.metadata.planner import new_topic_id
from storage_tiers import events
from storage_tiers.clock import Rng
from storage_tiers.errors import InvalidRequest, LogError, TopicExists

if TYPE_CHECKING:
    from service.configs.values import BrokerConfigs
    from service.metadata.image import MetadataImage

log = logging.getLogger(__name__)

#: A key of this many characters always fits into a record, because UTF-8 takes at most four bytes for each.
SHORT_KEY = MAX_STRING_BYTES // 4

#: The topics of coordinators, by name. Each function describes the topic to create under the current configs.
CoordinatedTopics = Mapping[str, Callable[[], NewTopic]]


def coordinated_topics(broker: BrokerConfigs) -> CoordinatedTopics:
    """The topics of coordinators. FindCoordinator and Metadata both create them with these configs. With the broker's defaults,
    `__consumer_offsets` would lose offsets to retention."""
    return {CONSUMER_OFFSETS: partial(_offsets_topic, broker), TRANSACTION_STATE: partial(_transactions_topic, broker)}


def _offsets_topic(broker: BrokerConfigs) -> NewTopic:
    own = consumer_offsets_configs(broker.offsets_topic_segment_bytes)
    return NewTopic(CONSUMER_OFFSETS, broker.offsets_topic_num_partitions, 1, own)


def _transactions_topic(broker: BrokerConfigs) -> NewTopic:
    own = transaction_state_configs(broker.transaction_state_log_segment_bytes, broker.transaction_state_log_min_isr)
    return NewTopic(TRANSACTION_STATE, broker.transaction_state_log_num_partitions, 1, own)


class InternalTopic:
    """`wanted()` describes the topic to create."""

    def __init__(self, metadata: Metadata, controller: Commands, rng: Rng, wanted: Callable[[], NewTopic]) -> None:
        self._metadata = metadata
        self._controller = controller
        self._rng = rng
        self._wanted = wanted
        self.name = wanted().name
        self._creating: asyncio.Task[None] | None = None
        #: The last image in which a partition was looked up, and the topic's number of partitions in it, 0 without the topic.
        #: Every request of a group or of a transactional id asks.
        self._seen: MetadataImage | None = None
        self._partitions = 0

    def partition_of(self, key: str) -> int | None:
        """The partition that keeps `key`; None while the topic does not exist. Raises InvalidRequest for a key that no record
        can hold."""
        if len(key) > SHORT_KEY:
            check_key(key)
        image = self._metadata.image
        if image is not self._seen:
            topic = image.topic(self.name)
            self._seen, self._partitions = image, 0 if topic is None else len(topic.partitions)
        return partition_of(key, self._partitions) if self._partitions else None

    async def coordinator(self, key: str) -> int:
        """Returns the id of the broker that leads the partition of `key`. Starts the creation of the topic if it is missing.
        Raises CoordinatorNotAvailable until a broker leads the partition, and InvalidRequest for a key that no record can
        hold."""
        check_key(key)
        topic = self._metadata.image.topic(self.name)
        if topic is None:
            if self._creating is None:
                self._creating = asyncio.get_running_loop().create_task(self._create(), name=self.name)
            raise CoordinatorNotAvailable(f"{self.name} is being created; retry")
        leader = topic.partitions[partition_of(key, len(topic.partitions))].leader
        if leader < 0:
            raise CoordinatorNotAvailable(f"no broker leads the partition of {self.name} that keeps {key!r}; retry")
        return leader

    async def _create(self) -> None:
        command = CreateTopic(self._wanted(), new_topic_id(self._metadata.image, self._rng))
        try:
            made = await self._controller.execute(command)
        except TopicExists:
            return
        except LogError as error:
            events.provoked(log, "topic.refused", by=self.name, topic=self.name, asked="create", error=error)
            return
        finally:
            self._creating = None
        events.info(
            log,
            "topic.created",
            topic=self.name,
            topic_id=str(made.topic_id),
            partitions=made.partitions,
            replication_factor=made.replication_factor,
        )

    async def close(self) -> None:
        if self._creating is not None:
            self._creating.cancel()
            await asyncio.wait({self._creating})


def check_key(key: str) -> None:
    """Raises InvalidRequest for an id of a group or a transaction that is too long for a record's key. gRPC can carry such
    ids."""
    if len(key) > SHORT_KEY and (size := len(key.encode())) > MAX_STRING_BYTES:
        raise InvalidRequest(f"an id of {size} bytes cannot be kept; at most {MAX_STRING_BYTES} are allowed")
