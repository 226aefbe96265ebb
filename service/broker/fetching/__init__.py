"""Fetches, at once or after a wait. May import `partition`."""
