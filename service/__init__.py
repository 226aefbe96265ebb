"""Composes the node: settings, metadata, broker, background work, command line."""
