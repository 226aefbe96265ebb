"""Pure planners over a snapshot of both tiers: what to upload, evict, retire, sweep. No I/O, no clock, no asyncio."""
