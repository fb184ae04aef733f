"""The table of NumPy's functions, with all rules in it: importing the modules of rules fills it."""

from __future__ import annotations

from plait_bytecode_tracer.arrays import along_axes, creation, linear, reductions, shaping
from plait_bytecode_tracer.arrays.table import FUNCTIONS

RULES = (along_axes, creation, linear, reductions, shaping)
"""The modules of rules."""

__all__ = ["FUNCTIONS", "RULES"]
