"""A node built from the bucket alone: its disk is lost, its cluster is not. May ask the tier process and write metadata."""
