"""Manifests and ranges as messages."""

from __future__ import annotations

from grpc_api.contract.cold import ColdManifest, ColdRange, ColdRepair
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


def range_message(found: ColdRange) -> pb.Range:
    return pb.Range(**found._asdict())


def range_of(message: pb.Range) -> ColdRange:
    return ColdRange(*(getattr(message, name) for name in ColdRange._fields))


def repair_message(found: ColdRepair) -> pb.RepairResponse:
    return pb.RepairResponse(**found._asdict())


def repair_of(message: pb.RepairResponse) -> ColdRepair:
    return ColdRepair(*(getattr(message, name) for name in ColdRepair._fields))
