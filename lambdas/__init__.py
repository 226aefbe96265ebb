"""Functions that bucket notifications invoke, one handler per file. They import `storage_tiers` and no broker code."""
