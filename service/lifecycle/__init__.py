"""The parts of a node's lifecycle that all packages share: its readiness, the reason for its end, and its supervised
workers."""
