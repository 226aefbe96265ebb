"""Background work of a node: offload, eviction, expiry, sweeps, flushes, checkpoints, compaction. May import `partition`."""
