"""The tier in the object store, a room for each concern:

    offline   one reader of the bucket, without a node          read      the broker's reads of cold data
    process   the tier process and the broker's end of it        segments  from local bytes to verified objects, and away
    manifest  what is in the bucket, and every way it changes    stores    the port to an object store, and the stores

Imports point down: `offline`, `read` and `process` know `segments`, that knows `manifest`, that knows the port in `stores`.
"""
