"""The passes, in an ordered table, and what runs them."""

from plait_fx_passes.passes.base import Fuel, Pass, PassContext
from plait_fx_passes.passes.cleanup import COMMON_SUBEXPRESSIONS, DEAD_CODE
from plait_fx_passes.passes.noops import REMOVE_NOOPS

__all__ = ["COMMON_SUBEXPRESSIONS", "DEAD_CODE", "REMOVE_NOOPS", "Fuel", "Pass", "PassContext"]
