"""From tracked values back to Python: the code that runs after a graph."""
