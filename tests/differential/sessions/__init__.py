"""What is said to both brokers: one module an area, one function a session, imported by `judge`."""
