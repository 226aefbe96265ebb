"""The tier process beside the broker, and the broker's end of it.

The broker imports `client`, `operations`, `protocol`, `launcher` and `settings`, none of which knows an S3 library.
"""
