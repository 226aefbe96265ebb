"""Kafka's language: bytes to contract calls and back. Knows `grpc_api.contract` and the value types of `storage_tiers`."""
