"""NumPy on tensors of the graph: arrays, and the functions that are captured.

Nothing here is imported before a trace meets an array or a function of NumPy, so the tracer
works without NumPy. What is captured stands in the tables of this folder; every other
function of NumPy runs as it is, at a graph break.
"""
