"""Cold reads in the broker: the chunk cache, downloads, read-ahead and their pace. Imports no S3 library."""
