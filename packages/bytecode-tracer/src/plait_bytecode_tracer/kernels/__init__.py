"""Triton kernels that a program launches itself: each launch is one operator of the graph."""
