"""One partition that this node holds: what is appended and read, what of it is committed."""
