"""Both distributions: what their projects say, and their wheels installed beside a user's own files."""
