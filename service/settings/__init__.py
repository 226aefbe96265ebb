"""A node's own settings, and the parts of a node that follow from them alone."""
