"""Branches and loops on values: operators whose bodies are graphs of their own."""

from plait_bytecode_tracer.control.compiling import compile_bodies

__all__ = ["compile_bodies"]
