"""Arguments of a dispatcher call as numbers, for torch's stable C interface.

`torch_call_dispatcher` takes a stack of 64-bit slots, one for each schema argument, laid
down by torch/csrc/stable/stableivalue_conversions.h. What can be known before the program
runs is encoded here, as a tag and what the tag asks for:

    NOTHING                 an absent optional value: a slot of 0
    TENSOR number           the number-th tensor of the call: an owned handle
    BITS slot               int, bool, double, element type, layout, memory format, device
    PRESENT value           a present optional value: a pointer to its slot
    LIST length values...   a list handle
    STRING number           a string handle

`native/external.h` builds the stack from it.
"""

from __future__ import annotations

import struct
from dataclasses import field
from typing import TYPE_CHECKING

from plait_cpp_codegen.external.schemas import overload_of
from plait_cpp_codegen.tables import Number, scalar_type
from plait_ir_lowering import Device, DType, ExternArg, ExternList, IndexExpr, TensorRef
from plait_scheduler import CallExtern
from plait_utils import dataclass
from plait_utils.with_gradients import TORCHS_OWN

if TYPE_CHECKING:
    from torch._C import Argument, JitType

NOTHING, TENSOR, BITS, PRESENT, LIST, STRING = range(6)

_WITHOUT_EFFECTS = ("aten::", "mkldnn::", "plait_philox::reserve")
"""How names of operators begin that have no effects of which their schemas do not tell: torch's
own, and one that moves a generator on."""
_MEMORY_FORMATS = {
    "contiguous_format": 0,
    "preserve_format": 1,
    "channels_last": 2,
    "channels_last_3d": 3,
}
_DEVICE_TYPES = {"cpu": 0, "cuda": 1}


class NotEncodable(Exception):
    """An argument or a result whose type the stable interface does not know."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A dispatcher call before its tensors are known."""

    numbers: tuple[Number, ...]
    strings: tuple[str, ...]
    kinds: str
    """Of each return: "t" for a tensor, "l" for a list of tensors."""


def encode_call(call: CallExtern) -> Encoded:
    """Raises NotEncodable where only Python can make the call."""
    if call.op not in TORCHS_OWN and not call.op.startswith(_WITHOUT_EFFECTS):
        # An operator of the user's may print or count; where it raises, it must run once.
        raise NotEncodable(call.op)
    schema = overload_of(call)._schema
    encoder = _Encoder()
    given = iter(call.args)
    outs = sum(argument.is_out for argument in schema.arguments)
    tensors = 0
    for argument in schema.arguments:
        if argument.is_out:
            continue
        encoder.add(argument.real_type, next(given), argument)
    tensors = encoder.tensors
    if any(a.is_out for a in schema.arguments[: len(schema.arguments) - outs]):
        raise NotEncodable("out arguments that are not the last ones")
    for number in range(outs):
        encoder.numbers += [TENSOR, tensors + number]
    kinds = "".join(_return_kind(returned.real_type) for returned in schema.returns)
    return Encoded(tuple(encoder.numbers), tuple(encoder.strings), kinds)


def _return_kind(kind: JitType) -> str:
    if kind.kind() == "TensorType":
        return "t"
    if kind.kind() == "ListType" and _element(kind).kind() == "TensorType":
        return "l"
    raise NotEncodable(f"a result of type {kind}")


def _element(kind: JitType) -> JitType:
    element: JitType = kind.getElementType()
    return element


@dataclass(slots=True)
class _Encoder:
    numbers: list[Number] = field(default_factory=list)
    strings: list[str] = field(default_factory=list)
    tensors: int = 0

    def add(self, kind: JitType, arg: ExternArg, argument: Argument) -> None:
        name = kind.kind()
        if name == "OptionalType":
            if arg is None:
                self.numbers.append(NOTHING)
                return
            self.numbers.append(PRESENT)
            self.add(_element(kind), arg, argument)
        elif name == "ListType":
            items = _items(arg, argument)
            self.numbers += [LIST, len(items)]
            for item in items:
                self.add(_element(kind), item, argument)
        elif name == "TensorType":
            if not isinstance(arg, TensorRef):
                raise NotEncodable(f"{arg!r} for a tensor")
            self.numbers += [TENSOR, self.tensors]
            self.tensors += 1
        elif name == "StringType" and isinstance(arg, str):
            self.numbers += [STRING, len(self.strings)]
            self.strings.append(arg)
        else:
            self.numbers += [BITS, _bits(name, arg)]


def _items(arg: ExternArg, argument: Argument) -> tuple[ExternArg, ...]:
    if isinstance(arg, ExternList):
        return arg.items
    length: int | None = getattr(argument, "N", None)  # which torch's stubs do not know
    if length is not None:  # a list of fixed length, given as one item
        return (arg,) * length
    raise NotEncodable(f"{arg!r} for a list")


def _bits(kind: str, arg: ExternArg) -> Number:
    """A slot, as a signed number of 64 bits."""
    if isinstance(arg, IndexExpr) and arg.is_constant:
        arg = arg.as_int()
    match kind, arg:
        case "IntType" | "SymIntType", bool() | int() if -(2**63) <= arg < 2**63:
            return int(arg)
        case "IntType" | "SymIntType", IndexExpr():
            return arg
        case "BoolType", bool() | int():
            return int(bool(arg))
        case "FloatType", bool() | int() | float():
            return int(struct.unpack("<q", struct.pack("<d", float(arg)))[0])
        case "ScalarTypeType", DType():
            return scalar_type(arg)
        case "ScalarTypeType", int():  # a default of the schema, in torch's numbers
            return arg
        case "LayoutType", "strided" | "torch.strided":
            return 0
        case "MemoryFormatType", str() if arg.removeprefix("torch.") in _MEMORY_FORMATS:
            return _MEMORY_FORMATS[arg.removeprefix("torch.")]
        case "DeviceObjType", Device(type_, index) if type_ in _DEVICE_TYPES:
            low = 0xFFFFFFFF if index is None else index
            return (_DEVICE_TYPES[type_] << 32) | low
    raise NotEncodable(f"{arg!r} of type {kind}")
