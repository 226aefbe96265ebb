"""The log cleaner: decides which records of a compacted partition to keep, and rewrites segments without the others."""
