"""The harness of the speed figures: what it makes of them, not the figures."""
