"""Builds a node from the bucket alone, after its disk was lost. This package queries the tier process and writes metadata."""
