"""Cold reads in the broker: what is cached, what must be fetched, how far ahead and how fast. Imports no S3 library."""
