"""The contract's implementations: they answer a node's callers. May import `background` and `partition`."""
