"""What a node does by itself: uploads, evicts, expires, sweeps, flushes, saves. May import `partition`, not `api`."""
