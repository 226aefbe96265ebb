"""The contract's implementations: what callers ask a node, and how it is answered. May import `background` and `partition`."""
