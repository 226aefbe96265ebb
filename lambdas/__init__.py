"""What the bucket wakes: one handler a file. They know `storage_tiers` and nothing of a broker."""
