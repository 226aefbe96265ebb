"""Checks that the bucket holds exactly the contents that its manifests list, byte for byte. Reads only; needs no node."""
