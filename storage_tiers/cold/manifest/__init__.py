"""The bucket's documents as values and as bytes: manifests, pages, keys, `cluster.json`, `topic.json`, and their commits.

All but `commit` and the two files' read-change-write loops is pure. Only the port of `stores` is known here.
"""
