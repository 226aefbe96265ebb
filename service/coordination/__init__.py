"""Coordinators of consumer groups and transactions: state machines whose history is a partition of an internal topic."""
