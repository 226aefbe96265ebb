"""Builds a node from the bucket alone, after its disk was lost. It queries the tier process and writes metadata."""
