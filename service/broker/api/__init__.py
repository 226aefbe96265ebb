"""The contract's implementations: they answer a node's callers. The sibling packages hold the mechanisms."""
