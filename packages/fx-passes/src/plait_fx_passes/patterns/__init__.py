"""A pattern matcher whose patterns are the Python they match, and the rules that ship."""

from plait_fx_passes.patterns.expressions import Anything, Scalar, Tensors
from plait_fx_passes.patterns.matching import Match
from plait_fx_passes.patterns.rewriting import RewriteRule, rule_pass
from plait_fx_passes.patterns.rules import (
    ATTENTION,
    BATCHES_OF_ONE,
    EXACT_RULES,
    NUMERIC_RULES,
    RECOGNIZE,
    SIMPLIFY,
    THIN_PRODUCTS,
    VECTOR_PRODUCTS,
)

__all__ = [
    "ATTENTION",
    "BATCHES_OF_ONE",
    "EXACT_RULES",
    "NUMERIC_RULES",
    "RECOGNIZE",
    "SIMPLIFY",
    "THIN_PRODUCTS",
    "VECTOR_PRODUCTS",
    "Anything",
    "Match",
    "RewriteRule",
    "Scalar",
    "Tensors",
    "rule_pass",
]
