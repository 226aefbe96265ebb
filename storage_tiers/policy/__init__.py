"""Pure planners over a snapshot of both tiers: which segments to offload, evict, expire, clean and sweep. No I/O, clock or
asyncio."""
