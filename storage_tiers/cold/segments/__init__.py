"""Segments of a log as objects: their sidecars, their offload, their verification, their deletion once nothing names them."""
