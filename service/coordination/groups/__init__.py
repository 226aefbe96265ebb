"""Consumer groups: one shard per partition of `__consumer_offsets`."""
