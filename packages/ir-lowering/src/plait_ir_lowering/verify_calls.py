"""Whether an external call is one that its operator's schema allows."""

from __future__ import annotations

import torch
from torch._ops import OpOverload

from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.graph import Device, ExternArg, ExternCall, ExternList, TensorRef
from plait_ir_lowering.ir.index import IndexExpr

# A schema's scalar types, and what the loop IR says them with.
_KINDS: dict[str, tuple[type, ...]] = {
    "Tensor": (TensorRef, bool, int, float, complex),  # a number is a tensor without dimensions
    "bool": (bool, int),
    "int": (bool, int, IndexExpr),
    "float": (bool, int, float, IndexExpr),
    "number": (bool, int, float, complex, IndexExpr),
    "str": (str,),
    "ScalarType": (DType, int),  # a default is given as the number that torch has for it
    "Device": (Device,),
    "Layout": (str,),
    "MemoryFormat": (str,),
    "Generator": (),
}

# Arguments that a schema calls tensors, and torch passes undefined ones for.
_MAY_BE_UNDEFINED = frozenset({"attn_bias", "cum_seq_q", "cum_seq_k"})


def call_problem(call: ExternCall, results: int) -> str | None:
    """What is wrong with a call that defines `results` buffers; None if nothing is."""
    op = _overload(call)
    if op is None:
        return f"there is no operator {call.op}.{call.overload}"
    schema = op._schema
    expected = [argument for argument in schema.arguments if not argument.is_out]
    if len(call.args) != len(expected):
        return f"{call.op} takes {len(expected)} arguments, not {len(call.args)}"
    for argument, given in zip(expected, call.args, strict=True):
        if given is None and argument.name in _MAY_BE_UNDEFINED:
            continue
        if not _fits(given, str(argument.real_type)):
            kind = type(given).__name__
            return (
                f"the argument {argument.name} of {call.op} is a {argument.real_type}, not a {kind}"
            )
    outs = len(schema.arguments) - len(expected)
    if call.out_variant and outs != results:
        return f"{call.op}.{call.overload} has {outs} out arguments for {results} buffers"
    if call.out_variant or any(str(each.real_type) != "Tensor" for each in schema.returns):
        return None
    if len(schema.returns) != results:
        return f"{call.op} returns {len(schema.returns)} tensors for {results} buffers"
    return None


def _overload(call: ExternCall) -> OpOverload | None:
    namespace, _, name = call.op.partition("::")
    packet = getattr(getattr(torch.ops, namespace, None), name, None)
    found = getattr(packet, call.overload or "default", None)
    return found if isinstance(found, OpOverload) else None


def _fits(given: ExternArg, kind: str) -> bool:
    """Whether an argument is of a schema's type, written as `Optional[List[int]]`."""
    if kind.startswith("Optional["):
        return given is None or _fits(given, kind[len("Optional[") : -1])
    if kind.startswith("List["):
        inner = kind[len("List[") : -1]
        if isinstance(given, ExternList):
            return all(_fits(item, inner) for item in given.items)
        return inner != "Tensor" and _fits(given, inner)  # one number stands for a list of it
    return isinstance(given, _KINDS.get(kind, (object,)))
