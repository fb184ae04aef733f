"""Random Python programs over tensors, compiled against eager."""
