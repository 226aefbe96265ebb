"""The state of a data directory at a start: its owner, whether it was moved or copied, and whether it needs its store."""
