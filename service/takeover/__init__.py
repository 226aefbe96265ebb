"""Builds a node from the bucket alone, after its disk was lost. May query the tier process and write metadata."""
