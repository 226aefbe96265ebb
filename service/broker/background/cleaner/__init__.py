"""Compaction: picks logs, lets the cleaner process rewrite them, swaps local segments and replaces the bucket's."""
