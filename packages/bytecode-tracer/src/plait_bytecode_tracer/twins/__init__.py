"""Python twins of C classes and functions, followed by the tracer as they are."""
