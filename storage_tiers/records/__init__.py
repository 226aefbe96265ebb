"""Kafka's record batch v2, the native format end to end: its header, its checks, its codecs, its records.

Pure: no I/O, no clock, only bytes. Outside this package a batch is opaque.
"""
