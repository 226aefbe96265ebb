"""The parts of a node's lifecycle that all packages share: its readiness, the reason why it ends, and its supervised
workers."""
