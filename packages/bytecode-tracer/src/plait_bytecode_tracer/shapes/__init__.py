"""Sizes and numbers that differ from call to call."""
