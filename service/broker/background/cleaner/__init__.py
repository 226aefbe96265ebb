"""Compaction: picks logs, has them cleaned by the cleaner process, and swaps what was rewritten, local and in the bucket."""
