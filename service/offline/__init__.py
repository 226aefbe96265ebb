"""Work on the data directory of a stopped node: repairs its store's manifests, and rebuilds the directory from the store."""
