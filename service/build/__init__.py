"""Builds a node: each module builds one group of its parts from finished parts, as a frozen bundle."""
