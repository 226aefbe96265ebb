"""The tier in the object store: formats (keys, manifest, pages, sidecar), commits, stores, the tier process, cold reads.

Formats and transitions are pure; `commit`, `uploader` and `sweeper` speak to an `ObjectStore`; only stores know S3.
"""
