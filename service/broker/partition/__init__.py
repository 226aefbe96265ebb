"""One partition of this node: its life, what is appended and read, what of it is committed; and all of them together."""
