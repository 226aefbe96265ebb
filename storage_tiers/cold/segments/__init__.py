"""Segments of a log as objects: building sidecars, offloading, verifying, repairing, and deleting objects that no manifest
names."""
