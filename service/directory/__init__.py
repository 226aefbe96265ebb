"""The state of a data directory at a start: whether it belongs to a cluster, whether it was moved or copied, and whether it
needs its store."""
