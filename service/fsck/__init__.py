"""Checks byte for byte that the bucket holds exactly what its manifests list. Reads only, and needs no node."""
