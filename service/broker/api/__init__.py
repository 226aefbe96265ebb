"""The contract's implementations: they answer a node's callers. The sibling packages append, fetch, coordinate and tier."""
