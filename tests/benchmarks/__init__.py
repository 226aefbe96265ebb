"""Tests of the benchmark harness: how it processes figures, not the figures themselves."""
