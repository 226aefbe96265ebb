"""Both distributions: their project files, and their wheels installed next to a user's own files."""
