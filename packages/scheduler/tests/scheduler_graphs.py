"""A small builder of loop IR graphs, evaluated with torch as it builds, for tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from plait_ir_lowering import (
    Buffer,
    Const,
    Definition,
    Device,
    DType,
    ExternArg,
    ExternCall,
    Graph,
    IndexExpr,
    Layout,
    Load,
    Op,
    Origin,
    Pointwise,
    Reduction,
    ReductionKind,
    TensorRef,
    Value,
    Var,
    as_index,
    product,
)

CPU = Device("cpu")
F32 = DType.f32

DTYPES = {
    torch.float32: DType.f32,
    torch.int64: DType.i64,
    torch.bool: DType.bool_,
    torch.float64: DType.f64,
}


@dataclass(frozen=True)
class T:
    """A tensor of the graph: how to load it at row-major coordinates, and its true value."""

    buffer: str
    size: tuple[int, ...]
    dtype: DType
    at: Callable[[Sequence[IndexExpr]], Value]
    value: torch.Tensor


@dataclass
class Builder:
    """Builds a graph; every method also computes the result in torch."""

    name: str = "main"
    inputs: list[Buffer] = field(default_factory=list)
    given: list[torch.Tensor] = field(default_factory=list)
    definitions: list[Definition] = field(default_factory=list)
    counter: itertools.count = field(default_factory=itertools.count)

    def input(self, value: torch.Tensor, name: str | None = None) -> T:
        name = name or f"x{len(self.inputs)}"
        dtype = DTYPES[value.dtype]
        layout = Layout.of(value.shape, value.stride())
        self.inputs.append(Buffer(name, dtype, CPU, layout))
        self.given.append(value)
        return self._tensor(name, tuple(value.shape), dtype, value)

    def _tensor(self, name: str, size: tuple[int, ...], dtype: DType, value: torch.Tensor) -> T:
        return T(name, size, dtype, lambda index: Load(name, list(index), dtype), value)

    def define(self, size: Sequence[int], body, value: torch.Tensor, dtype: DType = F32) -> T:
        name = f"buf{next(self.counter)}"
        buffer = Buffer(name, dtype, CPU, Layout.of(size))
        origin = Origin((f"node_{name}",), (f"line of {name}",))
        self.definitions.append(Definition((buffer,), body, origin))
        return self._tensor(name, tuple(size), dtype, value)

    def pointwise(self, op, value: torch.Tensor, *args: T) -> T:
        """`op(values...)` at broadcast coordinates."""
        size = tuple(value.shape)
        ranges = tuple(Var(f"i{n}", s) for n, s in enumerate(size))
        loads = [arg.at(_broadcast(ranges, arg.size)) for arg in args]
        body = Pointwise(ranges, op(*loads))
        return self.define(size, body, value, body.value.dtype)

    def unary(self, name: str, x: T) -> T:
        fn = torch.square if name == "square" else getattr(torch, name)
        return self.pointwise(lambda a: Op(name, [a]), fn(x.value), x)

    def binary(self, name: str, x: T, y: T | float) -> T:
        fn = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div}.get(name)
        fn = fn or getattr(torch, name)
        if isinstance(y, T):
            return self.pointwise(lambda a, b: Op(name, [a, b]), fn(x.value, y.value), x, y)
        return self.pointwise(
            lambda a: Op(name, [a, Const(y, a.dtype)]), fn(x.value, torch.tensor(y)), x
        )

    def reduce(self, kind: str, x: T, dims: Sequence[int], keepdim: bool = True) -> T:
        """Reduce over `dims`."""
        rank = len(x.size)
        dims = [d % rank for d in dims]
        outer = {
            d: Var(f"i{n}", x.size[d])
            for n, d in enumerate(d for d in range(rank) if d not in dims)
        }
        inner = {d: Var(f"r{n}", x.size[d]) for n, d in enumerate(dims)}
        both = {**outer, **inner}
        index = [both[d].expr for d in range(rank)]
        size = [x.size[d] for d in range(rank) if d not in dims]
        ranges = tuple(outer.values())
        if keepdim:
            size = [1 if d in dims else x.size[d] for d in range(rank)]
            ranges = tuple(Var(f"k{d}", 1) if d in dims else outer[d] for d in range(rank))
        body = Reduction(ranges, tuple(inner.values()), ReductionKind(kind), x.at(index))
        value = _reduced(kind, x.value, dims, keepdim)
        return self.define(size, body, value, body.kind.result_dtype(x.dtype))

    def view(self, x: T, size: Sequence[int]) -> T:
        """A row-major reshape, without a definition."""
        old = [as_index(s) for s in x.size]

        def at(index: Sequence[IndexExpr]) -> Value:
            number = Layout.of(size).linear(index)
            strides = Layout.of(old).stride
            return x.at(
                [number // st % n if n.as_int() > 1 else as_index(0) for st, n in zip(strides, old)]
            )

        return T(x.buffer, tuple(size), x.dtype, at, x.value.reshape(tuple(size)))

    def permute(self, x: T, dims: Sequence[int]) -> T:
        def at(index: Sequence[IndexExpr]) -> Value:
            back: list = [None] * len(dims)
            for place, d in enumerate(dims):
                back[d] = index[place]
            return x.at(back)

        size = tuple(x.size[d] for d in dims)
        return T(x.buffer, size, x.dtype, at, x.value.permute(tuple(dims)))

    def contiguous(self, x: T) -> T:
        return self.pointwise(lambda a: a, x.value.contiguous(), x)

    def extern(
        self,
        op: str,
        overload: str,
        args: Sequence[ExternArg],
        value: torch.Tensor,
        out: bool = True,
    ) -> T:
        call = ExternCall(op, overload, tuple(args), out)
        return self.define(tuple(value.shape), call, value)

    def mm(self, x: T, y: T) -> T:
        """Matrix product; `x` may be a row-major view of its buffer."""
        left = TensorRef(x.buffer, Layout.of(x.size))
        return self.extern("aten::mm", "out", [left, TensorRef(y.buffer)], x.value @ y.value)

    def bmm(self, x: T, y: T) -> T:
        args = [TensorRef(t.buffer, Layout.of(t.size)) for t in (x, y)]
        return self.extern("aten::bmm", "out", args, torch.bmm(x.value, y.value))

    def softmax(self, x: T) -> T:
        m = self.reduce("max", x, [-1])
        e = self.unary("exp", self.binary("sub", x, m))
        return self.binary("div", e, self.reduce("sum", e, [-1]))

    def layer_norm(self, x: T, weight: T | None = None, bias: T | None = None) -> T:
        n = float(x.size[-1])
        mean = self.binary("div", self.reduce("sum", x, [-1]), n)
        centred = self.binary("sub", x, mean)
        var = self.binary("div", self.reduce("sum", self.unary("square", centred), [-1]), n)
        scale = self.unary("rsqrt", self.binary("add", var, 1e-5))
        y = self.binary("mul", centred, scale)
        if weight is not None:
            y = self.binary("mul", y, weight)
        return y if bias is None else self.binary("add", y, bias)

    def gelu(self, x: T) -> T:
        e = self.unary("erf", self.binary("mul", x, 0.7071067811865476))
        return self.binary("mul", self.binary("mul", x, 0.5), self.binary("add", e, 1.0))

    def graph(self, *outputs: T, mutations=()) -> Graph:
        refs = tuple(TensorRef(out.buffer) for out in outputs)
        return Graph(self.name, tuple(self.inputs), tuple(self.definitions), refs, tuple(mutations))


def _broadcast(ranges: Sequence[Var], size: Sequence[int]) -> list[IndexExpr]:
    tail = ranges[len(ranges) - len(size) :]
    return [as_index(0) if s == 1 else v.expr for v, s in zip(tail, size)]


def _reduced(kind: str, x: torch.Tensor, dims: Sequence[int], keepdim: bool) -> torch.Tensor:
    if kind in ("max", "min"):
        return getattr(x, f"a{kind}")(dims, keepdim)
    if kind in ("argmax", "argmin", "prod"):
        rest = [d for d in range(x.dim()) if d not in dims]
        flat = x.permute(*rest, *dims).flatten(len(rest))
        if flat.dtype is torch.bool:  # which torch orders nowhere
            flat = flat.to(torch.uint8)
        out = getattr(flat, kind)(-1)
        shape = [1 if d in dims else x.shape[d] for d in range(x.dim())]
        return out.reshape(shape) if keepdim else out
    return getattr(x, kind)(dims, keepdim)


def transformer(layers: int, *, batch=2, seq=16, width=32, heads=4, hidden=64, seed=0):
    """A post-norm encoder; returns the builder and its output."""
    torch.manual_seed(seed)
    b = Builder("encoder")
    x = b.input(torch.randn(batch, seq, width), "x")
    mask = b.input(torch.randn(batch, 1, 1, seq), "mask")
    rows, head = batch * seq, width // heads
    for layer in range(layers):

        def weight(name, *size):
            return b.input(torch.randn(*size) / size[0] ** 0.5, f"{name}{layer}")

        def linear(t, name, n_in, n_out):
            flat = b.view(t, (rows, n_in))
            y = b.mm(flat, weight(f"w{name}", n_in, n_out))
            return b.view(b.binary("add", y, weight(f"b{name}", n_out)), (batch, seq, n_out))

        def split(t):
            return b.permute(b.view(t, (batch, seq, heads, head)), (0, 2, 1, 3))

        q = b.contiguous(split(linear(x, "q", width, width)))
        k = b.contiguous(b.permute(split(linear(x, "k", width, width)), (0, 1, 3, 2)))
        v = b.contiguous(split(linear(x, "v", width, width)))
        scores = b.bmm(b.view(q, (batch * heads, seq, head)), b.view(k, (batch * heads, head, seq)))
        scores = b.view(scores, (batch, heads, seq, seq))
        scores = b.binary("add", b.binary("mul", scores, head**-0.5), mask)
        attention = b.softmax(scores)
        mixed = b.bmm(
            b.view(attention, (batch * heads, seq, seq)), b.view(v, (batch * heads, seq, head))
        )
        mixed = b.contiguous(b.permute(b.view(mixed, (batch, heads, seq, head)), (0, 2, 1, 3)))
        out = linear(b.view(mixed, (batch, seq, width)), "o", width, width)
        x = b.layer_norm(b.binary("add", x, out), weight("g1", width), weight("h1", width))
        up = b.gelu(linear(x, "u", width, hidden))
        down = linear(up, "d", hidden, width)
        x = b.layer_norm(b.binary("add", x, down), weight("g2", width), weight("h2", width))
    return b, x


__all__ = ["CPU", "Builder", "T", "product", "transformer"]
