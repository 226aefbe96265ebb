"""The client SDK that programs embed: `client.Client` (asyncio), `blocking.BlockingClient`, `cold.ColdBucket` (no node).

Imports `grpc_api` and `storage_tiers` only. Anything not named in docs/sdk.md may change.
"""
