"""What a data directory is at a start: whose it is, whether it is where it was, and what it lacks without its store."""
