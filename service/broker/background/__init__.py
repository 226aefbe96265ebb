"""What a node does by itself: offloads, evicts, expires, sweeps, flushes, saves. May import `partition`, not `api`."""
