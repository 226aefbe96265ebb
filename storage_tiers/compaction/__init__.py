"""The log cleaner: which records of a compacted partition stay, and segments rewritten without the others."""
