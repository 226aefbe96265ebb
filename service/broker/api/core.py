"""Combines one broker's services into the core that the Kafka gateway and the gRPC server use."""

from __future__ import annotations

from dataclasses import dataclass

from service.broker.api.cold_service import ColdService
from service.broker.api.config_service import ConfigService
from service.broker.api.feature_service import FeatureService
from service.broker.api.group_service import GroupService
from service.broker.api.log_service import LogService
from service.broker.api.node_service import NodeService
from service.broker.api.topic_service import TopicService
from service.broker.api.transaction_service import TransactionService
from service.coordination.turn_writes import TurnWrites


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerCore:
    """Satisfies `grpc_api.contract.node.NodeCore`."""

    log: LogService
    topics: TopicService
    configs: ConfigService
    cold: ColdService
    node: NodeService
    groups: GroupService
    transactions: TransactionService
    features: FeatureService
    turns: TurnWrites
