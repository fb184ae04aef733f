"""Decompositions."""


def default_decompositions():
    return {}
