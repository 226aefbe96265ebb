"""Coordinators on a broker: their topics and logs, leadership, markers and expiry. May import `appending`,
`background` and `partition`."""
