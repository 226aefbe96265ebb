"""Parts of a node's life that all its packages share: its readiness, the reason for its end, and its supervised workers."""
