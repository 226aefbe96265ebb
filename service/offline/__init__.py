"""Work on a data directory whose node does not run: writing its store's manifests again, and building it from the store."""
