"""Requests to the operating system for a node's process: a short time slice, returned memory, open files."""
