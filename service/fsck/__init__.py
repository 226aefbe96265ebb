"""Does the bucket hold what its manifests say, byte for byte, and nothing else? Reads only; needs no node."""
