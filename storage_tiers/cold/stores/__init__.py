"""Object stores: memory, local directory, S3. Each keeps the promises of `storage_tiers.cold.object_store`.

Only the modules here may import an S3 library; `locate` imports the one it needs when a store is opened.
"""
