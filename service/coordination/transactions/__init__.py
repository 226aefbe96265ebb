"""Transactions: one shard per partition of `__transaction_state`."""
