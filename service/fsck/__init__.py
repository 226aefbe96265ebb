"""Checks byte by byte that the bucket contains exactly the objects that its manifests list. Only reads, and needs no node."""
