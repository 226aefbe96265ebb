"""The core's contract, its gRPC face, and the client SDK. May import `storage_tiers` only."""
