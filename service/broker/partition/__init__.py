"""The partitions of this node: the life of each, its appends, reads and commits, and the set of all."""
