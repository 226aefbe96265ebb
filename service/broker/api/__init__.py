"""The contract's implementations: they answer a node's callers. The mechanisms lie in the rooms below."""
