"""External calls through torch's C functions `aoti_torch_cpu_*`."""

from __future__ import annotations

from dataclasses import dataclass

from plait_cpp_codegen.errors import UnsupportedProgramError
from plait_scheduler import CallExtern

_KINDS = {
    "Tensor": "Tensor",
    "int": "int",
    "SymInt": "int",
    "bool": "bool",
    "float": "float",
    "number": "Scalar",
    "Scalar": "Scalar",
    "ScalarType": "ScalarType",
}


@dataclass(frozen=True, slots=True)
class ShimCall:
    """A C function of torch and the kinds of its arguments, in schema order."""

    symbol: str
    kinds: tuple[str, ...]
    """"Tensor", "int", "int[]", ..., with a "?" where the argument may be absent."""


def shim_call(call: CallExtern) -> ShimCall:
    """The C function for an external call. Raises UnsupportedProgramError if none fits.

    Whether this torch has the function is known when the program is loaded.
    """
    import torch

    namespace, name = call.op.split("::")
    if namespace != "aten":
        raise UnsupportedProgramError(f"{call.op}, an operator outside of ATen")
    packet = getattr(torch.ops.aten, name)
    overload = getattr(packet, call.overload or "default")
    suffix = f"_{call.overload}" if call.overload else ""
    kinds = tuple(
        _kind(str(argument.type), call.op)
        for argument in overload._schema.arguments
        if not argument.is_out
    )
    return ShimCall(f"aoti_torch_cpu_{name}{suffix}", kinds)


def _kind(text: str, op: str) -> str:
    optional = text.startswith("Optional[")
    inner = text.removeprefix("Optional[").removesuffix("]") if optional else text
    if inner.startswith("List["):
        item = _KINDS.get(inner.removeprefix("List[").removesuffix("]"))
        if item not in ("int", "Tensor") or optional:
            raise UnsupportedProgramError(f"{op}, which takes {text}")
        return f"{item}[]"
    if inner not in _KINDS:
        raise UnsupportedProgramError(f"{op}, which takes {text}")
    return _KINDS[inner] + ("?" if optional else "")
