"""A controller that serves brokers in other processes, and the brokers that follow it.

    broker ── Register, Heartbeat (stream) ──> contacts ──> RegisterBroker, UnfenceBroker, FenceBroker ... ┐
    broker ── Execute (a command with its id) ──────────────────────────────────> service.metadata.Controller ──> metadata log
    broker <── Follow (entries, or a snapshot, then entries) ───────────────────────────────────────────────────────┘

`contacts` is pure. `server` is the controller's side, `follower` and `client` are the broker's. May import `service.metadata`,
and the channel and errors of the gRPC package.
"""
