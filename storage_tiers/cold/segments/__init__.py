"""Segments of a log as objects: building sidecars, offloading, verifying, repairing, and deleting what no manifest names."""
