"""The core's contract, its gRPC server, and the client SDK. May import `storage_tiers` only."""
