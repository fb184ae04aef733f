"""Exceptions of the traced program, as values of the trace."""
