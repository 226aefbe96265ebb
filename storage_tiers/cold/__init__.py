"""The tier in the object store, one package for each concern:

    offline   readers of the bucket that have no node        read      the broker's reads of cold data
    process   the tier process and the broker's end of it    segments  offloading, checking, repairing, sweeping
    manifest  the bucket's documents, and how they change    stores    the port to an object store, and the stores

Imports point down: `offline`, `read` and `process` import `segments`, which imports `manifest`, which imports the port in
`stores`.
"""
