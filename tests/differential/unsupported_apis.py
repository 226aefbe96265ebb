"""The APIs that Kafka serves and we do not yet, with the reason that docs/compatibility.md gives users."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class UnsupportedApi:
    key: int
    name: str
    what: str


_GROUPS = "consumer groups of the newer protocol (KIP-848)"
_SECURITY = "security: SASL, ACLs, SCRAM, delegation tokens"
_QUOTAS = "quotas of users, clients and addresses: accepting an unenforced limit would mislead"
_SHARE = "share groups (queues)"

UNSUPPORTED_APIS = (
    UnsupportedApi(17, "SaslHandshake", _SECURITY),
    UnsupportedApi(29, "DescribeAcls", _SECURITY),
    UnsupportedApi(30, "CreateAcls", _SECURITY),
    UnsupportedApi(31, "DeleteAcls", _SECURITY),
    UnsupportedApi(36, "SaslAuthenticate", _SECURITY),
    UnsupportedApi(38, "CreateDelegationToken", _SECURITY),
    UnsupportedApi(39, "RenewDelegationToken", _SECURITY),
    UnsupportedApi(40, "ExpireDelegationToken", _SECURITY),
    UnsupportedApi(41, "DescribeDelegationToken", _SECURITY),
    UnsupportedApi(48, "DescribeClientQuotas", _QUOTAS),
    UnsupportedApi(49, "AlterClientQuotas", _QUOTAS),
    UnsupportedApi(50, "DescribeUserScramCredentials", _SECURITY),
    UnsupportedApi(51, "AlterUserScramCredentials", _SECURITY),
    UnsupportedApi(68, "ConsumerGroupHeartbeat", _GROUPS),
    UnsupportedApi(69, "ConsumerGroupDescribe", _GROUPS),
    UnsupportedApi(76, "ShareGroupHeartbeat", _SHARE),
    UnsupportedApi(77, "ShareGroupDescribe", _SHARE),
    UnsupportedApi(78, "ShareFetch", _SHARE),
    UnsupportedApi(79, "ShareAcknowledge", _SHARE),
    UnsupportedApi(83, "InitializeShareGroupState", _SHARE),
    UnsupportedApi(84, "ReadShareGroupState", _SHARE),
    UnsupportedApi(85, "WriteShareGroupState", _SHARE),
    UnsupportedApi(86, "DeleteShareGroupState", _SHARE),
    UnsupportedApi(87, "ReadShareGroupStateSummary", _SHARE),
    UnsupportedApi(88, "StreamsGroupHeartbeat", "streams groups"),
    UnsupportedApi(89, "StreamsGroupDescribe", "streams groups"),
    UnsupportedApi(90, "DescribeShareGroupOffsets", _SHARE),
    UnsupportedApi(91, "AlterShareGroupOffsets", _SHARE),
    UnsupportedApi(92, "DeleteShareGroupOffsets", _SHARE),
)
