"""The sessions run on both brokers: one module per area, one function per session, imported by `judge`."""
