"""Background work of a node: offload, eviction, expiry, sweeps, flushes, checkpoints. May import `partition`, not `api`."""
