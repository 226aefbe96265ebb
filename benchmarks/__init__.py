"""Benchmarks: load that costs the client little, a minimal broker for comparison (the floor), and the machine's own limits."""
