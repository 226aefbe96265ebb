"""Implements the core's contract over tiered logs and the metadata image. Imports nothing from the gateway, and nothing from
the packages that build or run a node."""
