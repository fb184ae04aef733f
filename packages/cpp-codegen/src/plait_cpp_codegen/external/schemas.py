"""Operators of external calls and their schemas."""

from __future__ import annotations

from torch._ops import OpOverload

from plait_cpp_codegen.errors import UnsupportedProgramError
from plait_ir_lowering import ExternArg, ExternList, TensorRef
from plait_scheduler import CallExtern


def overload_of(call: CallExtern) -> OpOverload:
    """The operator that is called. Raises UnsupportedProgramError where torch has none such."""
    import torch

    if reserves(call):
        import plait_utils.philox  # noqa: F401  # which makes it known to torch
    namespace, name = call.op.split("::")
    packet = getattr(getattr(torch.ops, namespace), name, None)
    overload = getattr(packet, call.overload or "default", None)
    if not isinstance(overload, OpOverload):
        raise UnsupportedProgramError(f"{call.op}.{call.overload}, an operator that is not there")
    return overload


def reserves(call: CallExtern) -> bool:
    """Whether a call moves a GPU's generator on, and gives its state."""
    return call.op == "plait_philox::reserve"


def tensors_of(call: CallExtern) -> list[TensorRef]:
    """The tensors of a call in the order in which hosts pass them: arguments, then outs."""
    found: list[TensorRef] = []

    def visit(arg: ExternArg) -> None:
        if isinstance(arg, TensorRef):
            found.append(arg)
        elif isinstance(arg, ExternList):
            for item in arg.items:
                visit(item)

    for arg in call.args:
        visit(arg)
    if call.out_variant:
        for name in call.results:
            if name is None:
                raise UnsupportedProgramError("an out argument that is discarded")
            found.append(TensorRef(name))
    return found
