"""Implements the core's contract over tiered logs and the metadata image. May import `storage_tiers`, `grpc_api.contract`
and `service.metadata`, but nothing from the gateway."""
