"""Pure planners over a snapshot of both tiers: what to offload, evict, expire and sweep. No I/O, clock or asyncio."""
