"""Object stores: memory, local directory, S3. Each keeps the promises of `storage_tiers.cold.stores.port`.

Only the modules here may import an S3 library; `open` imports the one it needs when a store is opened.
"""
