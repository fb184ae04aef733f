"""Tensor subclasses that wrap tensors: programs over them as programs over what they hold."""
