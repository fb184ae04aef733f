"""Values as the tracer sees them: variables, their sources, keys and classes."""
