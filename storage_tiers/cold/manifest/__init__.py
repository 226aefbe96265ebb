"""The bucket's documents as values and as bytes: manifests, pages, keys, `cluster.json`, `topic.json`, and their commits.

Modules that read or write do so through the port of `stores`, except `saved_manifest`, which uses the local disk. The others
are pure.
"""
