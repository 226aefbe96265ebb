"""Pure planners over a snapshot of both tiers: what to upload, evict, expire, sweep. No I/O, no clock, no asyncio."""
