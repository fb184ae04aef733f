"""Conformance suites of the tracer that are too long for the default tests; see README.md."""
