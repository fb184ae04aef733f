"""The guard tree as a native check."""

from plait_bytecode_tracer.guards.native.build import (
    NATIVE,
    NativeGuards,
    wait_for_native_guards,
)
from plait_bytecode_tracer.guards.native.flatten import Call, guarded

__all__ = ["NATIVE", "Call", "NativeGuards", "guarded", "wait_for_native_guards"]
