"""The process that `tidelog serve` runs: its servers, its periodic work, and the addresses that it announces."""
