"""Object stores: memory, local directory, S3. Each fulfils the contract in `storage_tiers.cold.stores.port`.

Only these modules may import an S3 library; `open` imports the one that it needs when a store is opened.
"""
