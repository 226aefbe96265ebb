"""Segments of a log as objects: their sidecars, their upload, their verification, their deletion once nothing names them."""
