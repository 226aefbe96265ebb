"""Parts of a node's life that all its rooms share: whether it is ready, why it must end, and its supervised workers."""
