"""A loop IR for tensor programs, and the rules that lower ATen graphs to it."""

from plait_ir_lowering._version import __version__

__all__ = ["__version__"]
