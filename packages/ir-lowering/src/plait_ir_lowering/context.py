"""What lowering rules work with: the definitions so far and ways to add more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from plait_ir_lowering.errors import LoweringError
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.graph import (
    Body,
    Buffer,
    Definition,
    Layout,
    Origin,
    Pointwise,
    Reduction,
    TensorRef,
)
from plait_ir_lowering.ir.index import ZERO, IndexExpr, Var, as_index
from plait_ir_lowering.ir.ops import PARTS, ReductionKind, TypeMismatchError
from plait_ir_lowering.ir.values import Const, IndexValue, Load, Op, Scalar, Value, part
from plait_ir_lowering.open_numbers import number_of
from plait_ir_lowering.registry import full_arguments
from plait_ir_lowering.tensors import NumberExpr, TensorExpr, dimensions
from plait_ir_lowering.torch_types import from_torch_device, from_torch_dtype, to_torch_dtype
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class LoweringOptions:
    """What lowering may choose."""

    small_matmul_work: int = 65536
    """Matrix products of at most this many multiply-adds become loops: an external call
    costs about 2 µs, in which the loops do that many."""
    own_products: bool = True
    """Products of matrices of few rows, and of small ones, become loops on CPUs where these are
    measured to be faster; see `rules/own_products.py`."""
    onednn_products: bool | None = None
    """Large products of float32 matrices call oneDNN, not MKL, on CPUs; None does so where it is
    faster on this machine; see `rules/onednn_products.py`."""
    sort_kernels: bool = True
    """Sorts and top-k of short rows become kernels on GPUs; see `rules/sorted_rows.py`."""
    deterministic: bool = False
    """What is combined at computed places on GPUs is so in a fixed order, or by ATen, which obeys
    `torch.use_deterministic_algorithms`, where any order would not do; see
    `rules/scattering.py`."""
    exact: bool = False
    """Only what loops compute to eager's last bit becomes loops; see `exact.py`."""


@dataclass(slots=True)
class LoweringContext:
    """What is being built, and the ATen node that is being lowered.

    Rules ask it for what they may depend on besides their arguments. Calls that agree in that are
    lowered once (`alike.py`), so rules must not look at the node itself.
    """

    options: LoweringOptions
    definitions: list[Definition] = field(default_factory=list)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    suffixes: dict[str, str] = field(default_factory=dict)
    """What the name of each buffer that is defined says after the node's; "" for a result."""
    storage_offsets: dict[str, IndexExpr] = field(default_factory=dict)
    """Storage offset of each buffer's fake value, which its views' offsets include."""
    node: fx.Node | None = None
    ahead: bool | None = None
    """`feeds_loops`, for rules that are registered with `looks_ahead`."""

    @property
    def result(self) -> torch.Tensor:
        """The fake value of the node; the first one where it has several."""
        value = self.current.meta["val"]
        first = value[0] if isinstance(value, tuple | list) else value
        if not isinstance(first, torch.Tensor):
            raise self.error("its result is not a tensor")
        return first

    @property
    def results(self) -> Sequence[torch.Tensor]:
        """The fake values of a node that has several."""
        values: Sequence[torch.Tensor] = self.current.meta["val"]
        return values

    @property
    def target(self) -> OpOverload:
        """The node's operator."""
        target = self.current.target
        if not isinstance(target, OpOverload):
            raise self.error("it is not an ATen operator")
        return target

    def argument(self, position: int) -> Any:
        """An argument by its position in the schema, as it was traced: the fake value of a
        tensor, numbers as they are."""
        node = self.current
        found = full_arguments(self.target, node.args, dict(node.kwargs))[position]
        return found.meta["val"] if isinstance(found, fx.Node) else found

    def traced(self, position: int) -> torch.Tensor:
        """The fake value of an argument that is a tensor."""
        found = self.argument(position)
        if not isinstance(found, torch.Tensor):
            raise self.error(f"argument {position} is not a tensor")
        return found

    @property
    def feeds_loops(self) -> bool:
        """Whether every use of the result, looking through views, is a loop."""
        if self.ahead is None:
            raise RuntimeError(f"the rule of {self.target} is not registered to look ahead")
        return self.ahead

    @property
    def current(self) -> fx.Node:
        if self.node is None:
            raise RuntimeError("no node is being lowered")
        return self.node

    def traced_size(self, argument: int, axis: int) -> int:
        """A size of an argument of the node as it was traced: where it is symbolic, what is
        decided by it is noted as a condition."""
        return self.traced(argument).shape[axis]

    def error(self, reason: str, hint: str | None = None) -> LoweringError:
        """An error about the current node, at the user's line."""
        node = self.current
        where = node.meta.get("source_line")
        return LoweringError(
            f"cannot lower {node.name} = {node.target}: {reason}",
            where=str(where) if where else None,
            hint=hint,
        )

    def origin(self) -> Origin:
        node = self.current
        line = node.meta.get("source_line")
        return Origin((node.name,), (str(line),) if line else ())

    def fresh_name(self, stem: str) -> str:
        name, number = stem, 0
        while name in self.buffers:
            number += 1
            name = f"{stem}_{number}"
        return name

    def add_buffer(self, buffer: Buffer, suffix: str, offset: IndexExpr) -> Buffer:
        """Take in a buffer of the current node, under a name of its own."""
        stem = f"{self.current.name}_{suffix}" if suffix else self.current.name
        fresh = self.fresh_name(stem)
        named = Buffer(fresh, buffer.dtype, buffer.device, buffer.layout)
        self.buffers[fresh] = named
        self.suffixes[fresh] = suffix
        self.storage_offsets[fresh] = offset
        return named

    def mark(self) -> int:
        """How much is defined, for `rewind`."""
        return len(self.definitions)

    def rewind(self, mark: int) -> None:
        """Take back what was defined since `mark`, where a rule gave up half-way."""
        for definition in self.definitions[mark:]:
            for buffer in definition.buffers:
                for known in (self.buffers, self.suffixes, self.storage_offsets):
                    del known[buffer.name]
        del self.definitions[mark:]

    def define(self, body: Body, like: torch.Tensor, suffix: str = "") -> TensorExpr:
        """A new buffer with the shape, strides and device of `like`, computed by `body`."""
        return self.define_buffers(body, [like], suffix)[0]

    def define_buffers(
        self, body: Body, likes: Sequence[torch.Tensor], suffix: str = ""
    ) -> tuple[TensorExpr, ...]:
        """New buffers, one for each fake tensor of `likes`, computed by one body."""
        buffers = tuple(self._buffer(like, suffix) for like in likes)
        self.definitions.append(Definition(buffers, body, self.origin()))
        return tuple(self.load(buffer) for buffer in buffers)

    def _buffer(self, like: torch.Tensor, suffix: str) -> Buffer:
        size = list(map(as_index, like.shape))
        stride = like.stride() if _is_apart(like) else None
        layout = Layout.of(size, stride)
        device = from_torch_device(like.device)
        buffer = Buffer("", self.dtype_of(like), device, layout)
        return self.add_buffer(buffer, suffix, as_index(like.storage_offset()))

    def dtype_of(self, tensor: torch.Tensor) -> DType:
        try:
            return from_torch_dtype(tensor.dtype)
        except KeyError:
            raise self.error(f"the loop IR has no {tensor.dtype}") from None

    def load(self, buffer: Buffer) -> TensorExpr:
        """A whole buffer as a tensor."""
        dims = dimensions(buffer.layout.size)
        value = Load(buffer.name, [dim.expr for dim in dims], buffer.dtype)
        return TensorExpr(dims, value, TensorRef(buffer.name))

    def pointwise(
        self, dims: tuple[Var, ...], value: Value, like: torch.Tensor | None = None
    ) -> TensorExpr:
        """A buffer with `value` at each point, of the node's result or of `like`."""
        target = self.result if like is None else like
        wanted = self.dtype_of(target)
        return self.define(Pointwise(dims, cast(value, wanted)), target)

    def reduce(
        self,
        source: TensorExpr,
        axes: Sequence[int],
        kind: ReductionKind,
        *,
        keepdim: bool,
        name: str,
        dtype: DType | None = None,
    ) -> TensorExpr:
        """`source` combined over `axes`, in `dtype` (its own if not given), as a new buffer."""
        places: list[IndexExpr] = []
        kept: list[Var] = []
        reduced: list[Var] = []
        for axis, dim in enumerate(source.dims):
            if axis in axes:
                reduced.append(Var(f"r{len(reduced)}", dim.extent))
                places.append(reduced[-1].expr)
                if keepdim:
                    kept.append(Var(f"i{len(kept)}", 1))
            else:
                kept.append(Var(f"i{len(kept)}", dim.extent))
                places.append(kept[-1].expr)
        value = cast(source.at(places), dtype or source.dtype)
        body = Reduction(tuple(kept), tuple(reduced), kind, value)
        return self._new_buffer(body, kept, kind.result_dtype(value.dtype), name)

    def combined(
        self,
        dims: tuple[Var, ...],
        reduced: tuple[Var, ...],
        kind: ReductionKind,
        value: Value,
        name: str,
    ) -> TensorExpr:
        """`value` at each point of `dims` combined over `reduced`, as a new buffer."""
        body = Reduction(dims, reduced, kind, value)
        return self._new_buffer(body, dims, kind.result_dtype(value.dtype), name)

    def computed(self, body: Body, dims: tuple[Var, ...], dtype: DType, name: str) -> TensorExpr:
        """A row-major buffer of the rule's own that `body` computes."""
        return self._new_buffer(body, dims, dtype, name)

    def _new_buffer(self, body: Body, dims: Sequence[Var], dtype: DType, name: str) -> TensorExpr:
        device = from_torch_device(self.result.device)
        buffer = Buffer("", dtype, device, Layout.of([dim.extent for dim in dims]))
        buffer = self.add_buffer(buffer, name, ZERO)
        self.definitions.append(Definition((buffer,), body, self.origin()))
        return self.load(buffer)

    def intermediate(self, dims: tuple[Var, ...], value: Value, name: str) -> TensorExpr:
        """A row-major buffer of the rule's own, of the dtype of `value`."""
        return self._new_buffer(Pointwise(dims, value), dims, value.dtype, name)

    def realize(self, tensor: TensorExpr, like: torch.Tensor) -> TensorRef:
        """`tensor` in memory; computed into a new buffer like `like` where it is not there."""
        if tensor.ref is not None:
            return tensor.ref
        ref = self.define(Pointwise(tensor.dims, tensor.value), like).ref
        if ref is None:
            raise RuntimeError("a buffer without a reference")
        return ref


def cast(value: Value, dtype: DType) -> Value:
    """`value` as `dtype`; a complex number's real part where that is real."""
    if value.dtype is dtype:
        return value
    if dtype in PARTS:
        real, imaginary = value, constant(0, PARTS[dtype])
        if value.dtype in PARTS:
            real, imaginary = part("real", value), part("imag", value)
        return Op("complex", [cast(real, PARTS[dtype]), cast(imaginary, PARTS[dtype])])
    if value.dtype in PARTS:
        return cast(part("real", value), dtype)
    if isinstance(value, Const) and not (value.dtype.is_float and not dtype.is_float):
        return constant(_rounded(value), dtype)
    return Op("to", [value], dtype)


def constant(
    value: Scalar | complex | torch.SymFloat | NumberExpr | IndexExpr, dtype: DType
) -> Value:
    """A number of an element type; integers wrap around, as eager's scalars do.

    It may be a size, or be computed of sizes, that are known only when the program runs.
    """
    if isinstance(value, NumberExpr):
        return cast(_unwidened(value.value, dtype), dtype)
    if dtype in PARTS:
        kind = PARTS[dtype]
        if isinstance(value, complex):
            return Op("complex", [constant(value.real, kind), constant(value.imag, kind)])
        return Op("complex", [constant(value, kind), constant(0, kind)])
    if isinstance(value, complex):
        raise TypeMismatchError(f"{value} as {dtype}")
    if isinstance(value, IndexExpr | torch.SymInt):
        size = as_index(value)
        if not size.is_constant:
            return cast(IndexValue(size), dtype)
        value = size.constant
    if isinstance(value, torch.SymFloat):
        number = number_of(value)
        if number is not None:
            return cast(number, dtype)
    if isinstance(value, torch.SymFloat | torch.SymBool):
        value = float(value)
    if dtype.is_integer and math.isfinite(value):
        limits = torch.iinfo(to_torch_dtype(dtype))
        value = (int(value) - limits.min) % (limits.max - limits.min + 1) + limits.min
    return Const(value, dtype)


def _unwidened(number: Value, dtype: DType) -> Value:
    """What a number was read from, where that has the element type `dtype` already."""
    if isinstance(number, Op) and number.name == "to" and number.args[0].dtype is dtype:
        return number.args[0]
    return number


def _rounded(value: Const) -> Scalar:
    """The number that a constant's element type holds; the constant may be written exactly."""
    if not value.dtype.is_float or value.dtype is DType.f64:
        return value.value
    return torch.tensor(value.value, dtype=to_torch_dtype(value.dtype)).item()


def _is_apart(tensor: torch.Tensor) -> bool:
    """Whether each element has a place of its own, as its strides tell, or there is none."""
    if tensor.numel() == 0:
        return True
    reach = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride < reach:
            return False
        reach += stride * (size - 1)
    return True
