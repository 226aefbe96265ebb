"""Speed measurements: a cheap load, a minimal broker as the floor, and the machine's own limits."""
