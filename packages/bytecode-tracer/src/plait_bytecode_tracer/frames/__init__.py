"""Symbolic execution of code objects: frames, calls of functions, generators."""
