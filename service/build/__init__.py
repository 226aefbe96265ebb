"""Puts a node together: each module makes one group of its parts, from parts that are finished, as a frozen bundle."""
