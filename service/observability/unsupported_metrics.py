"""Kafka's broker metrics that are not served, each with the reason. `docs/operations.md` lists them.

Names are MBeans as in `metrics.Metric.mbean`. `*` stands for the rest of a name. A test compares the names with the MBeans of
Apache Kafka 4.2.1.
"""

from __future__ import annotations

_TOPICS = "kafka.server:type=BrokerTopicMetrics,name="
_CONTROLLER = "kafka.controller:type=KafkaController,name="
_REMOTE = "kafka.log.remote:type=RemoteLogManager,name="

#: (MBeans, the reason why they are not served)
UNSUPPORTED: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        (
            "kafka.cluster:type=Partition,name=*",
            "kafka.server:type=ReplicaManager,name=FailedIsrUpdatesPerSec",
            "kafka.server:type=ReplicaManager,name=IsrExpandsPerSec",
            "kafka.server:type=ReplicaManager,name=IsrShrinksPerSec",
            "kafka.server:type=ReplicaFetcherManager,name=*",
            "kafka.server:type=ReplicaAlterLogDirsManager,name=*",
            "kafka.server:type=FetcherLagMetrics,name=ConsumerLag",
            "kafka.server:type=alter-partition-metrics",
            "kafka.server:type=AssignmentsManager,name=*",
            "kafka.server:type=directory-assignments-metrics",
            _TOPICS + "ReplicationBytes*",
            _TOPICS + "ReassignmentBytes*",
        ),
        "A partition has one replica, in one directory. It has no followers, and moves go through the bucket. ReplicaManager's "
        "totals are served.",
    ),
    (
        (
            "kafka.controller:type=ControllerEventManager,name=*",
            "kafka.controller:type=ControllerStats,name=*",
            _CONTROLLER + "BrokerRegistrationState",
            _CONTROLLER + "ControlledShutdownBrokerCount",
            _CONTROLLER + "ControllerState",
            _CONTROLLER + "EventQueueOperations*",
            _CONTROLLER + "IgnoredStaticVoters",
            _CONTROLLER + "LastAppliedRecordLagMs",
            _CONTROLLER + "LastAppliedRecordTimestamp",
            _CONTROLLER + "NewActiveControllersCount",
            _CONTROLLER + "TimeSinceLastHeartbeatReceivedMs",
            _CONTROLLER + "TimedOutBrokerHeartbeatCount",
            "kafka.server:type=BrokerMetadataListener,name=*",
            "kafka.server:type=ControllerServer,name=*",
            "kafka.server:type=MetadataLoader,name=*",
            "kafka.server:type=SnapshotEmitter,name=*",
            "kafka.server:type=ForwardingManager",
            "kafka.server:type=broker-metadata-metrics",
            "kafka.server:type=forwarding-metrics",
            "kafka.server:type=heartbeat-metrics",
            "kafka.server:type=node-metrics",
            "kafka.server:type=raft-channel-metrics",
            "kafka.server:type=raft-metrics",
            "kafka.server:type=registration-metrics",
        ),
        "A single controller has no elections and no lag. Brokers reach it over gRPC, in tidelog's own protocol.",
    ),
    (
        ("kafka.log:type=LogCleaner,name=DeadThreadCount",),
        "A cleaner process that dies is restarted, with the event `log.not_cleaned`.",
    ),
    (
        ("kafka.coordinator.transaction:type=TransactionMarkerChannelManager,name=*",),
        "Markers go to other brokers over gRPC. Transactions whose markers are not written yet count as prepared in "
        "tidelog_transactional_ids. The coordinators' own beans lack times of queues, threads and batches, because "
        "requests wait in no queue.",
    ),
    (
        (
            "kafka.server:type=AddPartitionsManager-channel-metrics",
            "kafka.server:type=AddPartitionsToTxnManager,name=*",
            "kafka.server:type=txn-marker-channel-metrics",
            "kafka.server:type=Persister-channel-metrics",
            "kafka.server:type=ShareGroupMetrics,name=*",
            "kafka.server:type=ShareSessionCache,name=*",
            "kafka.server:type=share-coordinator-metrics",
            _TOPICS + "*ShareFetchRequestsPerSec",
            _TOPICS + "*ShareAcknowledgementRequestsPerSec",
        ),
        "Brokers send requests about transactions to each other over gRPC, without Kafka's channels. There are no share groups "
        "yet.",
    ),
    (
        (
            "kafka.server:type=ControllerMutation",
            "kafka.server:type=Fetch",
            "kafka.server:type=Produce",
            "kafka.server:type=Request",
            "kafka.network:type=RequestMetrics,name=ThrottleTimeMs",
        ),
        "There are no quotas. tidelog_produce_throttled_total counts requests delayed by a filling disk.",
    ),
    (
        (
            _TOPICS + "FetchMessageConversionsPerSec",
            _TOPICS + "ProduceMessageConversionsPerSec",
            "kafka.network:type=RequestMetrics,name=MessageConversionsTimeMs",
            "kafka.network:type=RequestMetrics,name=TemporaryMemoryBytes",
        ),
        "Batches are never converted between message formats: only format 2 is accepted and returned.",
    ),
    (
        (
            "kafka.network:type=Acceptor,name=*",
            "kafka.network:type=Processor,name=*",
            "kafka.network:type=RequestChannel,name=*",
            "kafka.network:type=SocketServer,name=ExpiredConnectionsKilledCount",
            "kafka.network:type=SocketServer,name=MemoryPool*",
            "kafka.server:type=KafkaRequestHandlerPool,name=BrokerRequestHandlerAvgIdlePercent",
            "kafka.server:type=KafkaRequestHandlerPool,name=ControllerRequestHandlerAvgIdlePercent",
            "kafka.server:type=DelayedOperationPurgatory,name=NumDelayedOperations",
        ),
        "One event loop replaces acceptors, processors, handlers and the queues between them. Its idle share is served. "
        "PurgatorySize counts delayed requests.",
    ),
    (
        (
            _REMOTE + "*",
            _TOPICS + "BuildRemoteLogAuxState*",
            _TOPICS + "RemoteLogSizeComputationTime",
            _TOPICS + "RemoteDeleteLag*",
            "kafka.server:type=DelayedRemoteFetchMetrics,name=ExpiresPerSec",
        ),
        "The tier has no pool of readers and no followers that rebuild state. It knows sizes without computing them, and "
        "deletes objects after a grace period, not when a worker is free.",
    ),
    (
        (
            "kafka.log:type=LogManager,name=LogDirectoryOffline",
            "kafka.server:type=KafkaServer,name=ClusterId",
            "kafka.server:type=KafkaServer,name=linux-disk-*",
            "kafka.server:type=KafkaServer,name=yammer-metrics-count",
            "kafka.server:type=app-info",
            "kafka.server:type=kafka-metrics-count",
            "kafka.server:type=client-metrics",
            "kafka.server:type=plugins",
        ),
        "Served under other names: OfflineLogDirectoryCount, tidelog_node_info, process_*, and the node exporter's disk "
        "metrics. Clients' own metrics go to the log if metric.reporters says so.",
    ),
)
