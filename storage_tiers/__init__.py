"""The log itself: record batches, hot segments on local disk, cold objects in a store, and one offset space over both.

Uses the disk and an object store. Contains nothing of Kafka's requests, of gRPC, or of the service that composes it.
"""
