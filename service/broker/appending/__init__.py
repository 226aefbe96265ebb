"""Clients' batches on their way into a partition: at once, by threads, or after a coordinator was asked. May import
`background` and `partition`."""
