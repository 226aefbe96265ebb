"""Pure planners over a snapshot of both tiers: what to offload, evict, expire, sweep. No I/O, no clock, no asyncio."""
