"""Manifests, remote segments and repair reports as messages. `*_message` encode the contract's values, `*_of` decode."""

from __future__ import annotations

from grpc_api.contract.cold import ColdManifest, ColdRepair, ColdSegment
from grpc_api.messages.errors import detail_of, error_of
from grpc_api.proto import cold_pb2 as pb
from storage_tiers.errors import LogError


def manifest_message(partition: int, manifest: ColdManifest | LogError) -> pb.Manifest:
    if isinstance(manifest, LogError):
        return pb.Manifest(partition=partition, error=detail_of(manifest))
    return pb.Manifest(**manifest._asdict())


def manifest_of(message: pb.Manifest) -> ColdManifest | LogError:
    if message.HasField("error"):
        return error_of(message.error)
    return ColdManifest(*(getattr(message, name) for name in ColdManifest._fields))


def segment_message(found: ColdSegment) -> pb.RemoteSegment:
    return pb.RemoteSegment(**found._asdict())


def segment_of(message: pb.RemoteSegment) -> ColdSegment:
    return ColdSegment(*(getattr(message, name) for name in ColdSegment._fields))


def repair_message(found: ColdRepair) -> pb.RepairResponse:
    return pb.RepairResponse(**found._asdict())


def repair_of(message: pb.RepairResponse) -> ColdRepair:
    return ColdRepair(*(getattr(message, name) for name in ColdRepair._fields))
