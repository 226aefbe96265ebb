"""Builds a node from groups of parts. Each module builds one group from finished parts, as a frozen dataclass."""
