"""torch's C functions with the signature of one op: faster than its dispatcher.

They are `aoti_torch_cpu_*` and `aoti_torch_cuda_*`. `native/shims.txt` lists those that are used:
name, a kind for each argument, the number of results. torch never changes such a function; where
an op's schema has changed since, kinds differ from the list and the dispatcher is called instead.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

from plait_cpp_codegen.external.schemas import overload_of, tensors_of
from plait_cpp_codegen.native_runtime import source_text
from plait_ir_lowering import DType, ExternArg
from plait_scheduler import CallExtern, ProgramBuffer
from plait_utils import dataclass

if TYPE_CHECKING:
    from torch._C import JitType

_KINDS = {
    "TensorType": "t",
    "IntType": "i",
    "SymIntType": "i",
    "BoolType": "b",
    "ScalarTypeType": "b",
    "LayoutType": "b",
    "MemoryFormatType": "b",
    "FloatType": "d",
    "NumberType": "d",
    "StringType": "s",
}


@dataclass(frozen=True, slots=True)
class Shim:
    """A C function and the kinds of its arguments.

    A kind is t(ensor), i(nt64_t), b (int32_t), d(ouble) or s(tring), then "[]" for a list,
    and "?" where it may be absent.
    """

    symbol: str
    kinds: tuple[str, ...]


@functools.cache
def known_shims() -> dict[str, tuple[tuple[str, ...], int]]:
    """The listed functions by op and overload: kinds of arguments, number of results."""
    found: dict[str, tuple[tuple[str, ...], int]] = {}
    for line in source_text("shims.txt").splitlines():
        call, _, results = line.partition(" -> ")
        name, *kinds = call.split()
        found[name] = (tuple(kinds), int(results))
    return found


def shim_of(call: CallExtern, buffers: Mapping[str, ProgramBuffer]) -> Shim | None:
    """The C function that makes a call between these buffers, if one is listed; torch has not all
    of them for a GPU, and none for tensors on both sides."""
    made = [buffers[name] for name in call.results if name is not None]
    dtypes = tuple(buffer.dtype for buffer in made)
    taken = (buffers[ref.buffer] for ref in tensors_of(call))
    devices = {buffer.device.type for buffer in (*made, *taken)}
    if len(devices) > 1:
        return None
    device = devices.pop() if devices else "cpu"
    namespace, name = call.op.split("::")
    name += f"_{call.overload}" if call.overload else ""
    known = known_shims().get(name) if namespace == "aten" else None
    if known is None:
        return None
    schema = overload_of(call)._schema
    types = [argument.real_type for argument in schema.arguments if not argument.is_out]
    kinds, results = known
    outs = len(call.results) if call.out_variant else 0
    if ("t",) * outs + tuple(map(_kind, types)) != kinds:
        return None
    if results != (0 if outs else len(schema.returns)):
        return None
    if any(not _fits(type_, arg, dtypes) for type_, arg in zip(types, call.args, strict=True)):
        return None
    return Shim(f"aoti_torch_{device}_{name}", kinds[outs:])


def _kind(type_: JitType) -> str:
    name = type_.kind()
    if name == "OptionalType":
        return _kind(type_.getElementType()) + "?"
    if name == "ListType":
        return _kind(type_.getElementType()) + "[]"
    return _KINDS.get(name, "none")


def _fits(type_: JitType, arg: ExternArg, dtypes: tuple[DType, ...]) -> bool:
    """Whether a number may be passed as a double without a change of what the op computes."""
    if type_.kind() != "NumberType" or type(arg) is float:
        return True
    exact = isinstance(arg, int) and not isinstance(arg, bool) and abs(arg) <= 2**53
    return exact and all(dtype.is_float for dtype in dtypes)
