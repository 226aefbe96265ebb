"""Appends clients' batches: at once, by threads, or after a request to a coordinator. May import `background` and
`partition`."""
