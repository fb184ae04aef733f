"""Products of matrices: calls of torch's own kernels against loops, in turns.

    python conformance/products.py [--threads 1 2] [--seconds 0.2] [--dtype float32] [--kind linear]

Each shape is two programs with the same inputs: one calls torch's kernel, one sums products in a
kernel of its own. They run in turns, over several weights one after another, as layers do; times
are medians. What is multiplied, by kind:

- "linear": `x @ w.T + b` with `w` `[n, k]`; "matrix": `x @ w + b` with `w` `[k, n]` (`addmm`);
- "keys" and "heads": the same without a bias, 16 times (`bmm`);
- "bytes": int8 as "linear" without a bias, in int32 (`_int_mm`).

The tables in the README are its output, and the rule of `plait_ir_lowering`
(`rules/own_products.py`) follows from them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import torch

from plait_cpp_codegen.building import Executable, build
from plait_ir_lowering import (
    Buffer,
    Definition,
    Device,
    ExternCall,
    Graph,
    Layout,
    Load,
    Op,
    Pointwise,
    Reduction,
    ReductionKind,
    TensorRef,
    Value,
    Var,
    from_torch_dtype,
)
from plait_ir_lowering import DType as Element
from plait_scheduler import schedule

CPU = Device("cpu")
ROWS = (1, 4, 8, 16, 32, 64)
MATRICES = (
    *((16, 16), (64, 64), (128, 128), (256, 256), (768, 768), (3072, 768), (768, 3072)),
    (2048, 2048),
)
"""Columns of the result, and elements that are multiplied for each."""
BATCH = 16
BATCHED = ("heads", "keys")
"""`[z, k, n]` and `[z, n, k]`: what weights are multiplied by, and scores are made of."""
_BYTES = 64 << 20
"""Weights that are gone through take at most so many."""


def graph(m: int, n: int, k: int, dtype: torch.dtype, kind: str, own: bool) -> Graph:
    """`x @ w + b`; the weight of a "linear" layer is `[n, k]`, that of a "matrix" `[k, n]`."""
    of = from_torch_dtype(dtype)
    if kind == "bytes":
        return _bytes(m, n, k, own)
    if kind in BATCHED:
        return _batched(m, n, k, from_torch_dtype(dtype), kind, own)
    weight = Layout.of([n, k] if kind == "linear" else [k, n])
    x, w = Buffer("x", of, CPU, Layout.of([m, k])), Buffer("w", of, CPU, weight)
    b, y = Buffer("b", of, CPU, Layout.of([n])), Buffer("y", of, CPU, Layout.of([m, n]))
    definitions = _loops(m, n, k, kind, (x, w, b, y)) if own else [_call(kind, (x, w, b, y))]
    return Graph("product", (x, w, b), tuple(definitions), (TensorRef("y"),))


def _batched(m: int, n: int, k: int, of: Element, kind: str, own: bool) -> Graph:
    lies = Layout.of([BATCH, n, k] if kind == "keys" else [BATCH, k, n])
    x, w = Buffer("x", of, CPU, Layout.of([BATCH, m, k])), Buffer("w", of, CPU, lies)
    y = Buffer("y", of, CPU, Layout.of([BATCH, m, n]))
    if own:
        z, i, j, r = Var("i0", BATCH), Var("i1", m), Var("i2", n), Var("r0", k)
        at = (z, j, r) if kind == "keys" else (z, r, j)
        factors = Load("x", [v.expr for v in (z, i, r)], of), Load("w", [v.expr for v in at], of)
        body = Reduction((z, i, j), (r,), ReductionKind.SUM, Op("mul", factors))
        return Graph("product", (x, w), (Definition((y,), body),), (TensorRef("y"),))
    (z, *size), (by, *stride) = lies.size, lies.stride
    view = Layout((z, *size[::-1]), (by, *stride[::-1])) if kind == "keys" else None
    call = ExternCall("aten::bmm", "out", (TensorRef("x"), TensorRef("w", view)), out_variant=True)
    return Graph("product", (x, w), (Definition((y,), call),), (TensorRef("y"),))


def _bytes(m: int, n: int, k: int, own: bool) -> Graph:
    x, w = (
        Buffer(name, Element.i8, CPU, Layout.of([size, k])) for name, size in (("x", m), ("w", n))
    )
    y = Buffer("y", Element.i32, CPU, Layout.of([m, n]))
    if own:
        i, j, r = Var("i0", m), Var("i1", n), Var("r0", k)
        factors = (Load(name, [at.expr, r.expr], Element.i8) for name, at in (("x", i), ("w", j)))
        value = Op("mul", [Op("to", [each], Element.i32) for each in factors])
        body = Reduction((i, j), (r,), ReductionKind.SUM, value)
        return Graph("product", (x, w), (Definition((y,), body),), (TensorRef("y"),))
    args = (TensorRef("x"), TensorRef("w", Layout.of([k, n], [1, k])))
    call = ExternCall("aten::_int_mm", "out", args, out_variant=True)
    return Graph("product", (x, w), (Definition((y,), call),), (TensorRef("y"),))


def _call(kind: str, buffers: Sequence[Buffer]) -> Definition:
    w, y = buffers[1], buffers[3]
    size, stride = w.layout.size, w.layout.stride
    view = Layout(size[::-1], stride[::-1]) if kind == "linear" else None
    args = (TensorRef("b"), TensorRef("x"), TensorRef("w", view), 1, 1)
    return Definition((y,), ExternCall("aten::addmm", "out", args, out_variant=True))


def _loops(m: int, n: int, k: int, kind: str, buffers: Sequence[Buffer]) -> Iterator[Definition]:
    y = buffers[3]
    narrow = y.dtype.is_reduced_precision
    row, column, inner = Var("i0", m), Var("i1", n), Var("r0", k)

    def read(name: str, *at: Var) -> Value:
        value = Load(name, [each.expr for each in at], y.dtype)
        return Op("to", [value], Element.f32) if narrow else value

    places = (column, inner) if kind == "linear" else (inner, column)
    terms = Op("mul", [read("x", row, inner), read("w", *places)])
    total = Buffer("sum", terms.dtype, CPU, Layout.of([m, n]))
    body = Reduction((row, column), (inner,), ReductionKind.SUM, terms)
    yield Definition((total,), body)
    value: Value = Load("sum", [row.expr, column.expr], terms.dtype)
    value = Op("add", [value, read("b", column)])
    yield Definition(
        (y,), Pointwise((row, column), Op("to", [value], y.dtype) if narrow else value)
    )


def _times(
    programs: Sequence[Executable], inputs: Sequence[tuple[torch.Tensor, ...]], seconds: float
) -> list[float]:
    """Median microseconds of a call of each, all in turns."""
    runs: list[list[float]] = [[] for _ in programs]
    for program in programs:
        for given in inputs:
            program(*given)
    begin, calls = time.perf_counter(), 0
    programs[0](*inputs[0])
    batch = len(inputs) * max(int(2e-4 / (time.perf_counter() - begin) / len(inputs)), 1)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or calls < 7:
        calls += 1
        for number, program in enumerate(programs):
            start = time.perf_counter()
            for at in range(batch):
                program(*inputs[at % len(inputs)])
            runs[number].append((time.perf_counter() - start) / batch * 1e6)
    return [statistics.median(each) for each in runs]


def _inputs(
    m: int, n: int, k: int, dtype: torch.dtype, kind: str
) -> list[tuple[torch.Tensor, ...]]:
    if kind in BATCHED:
        shape = (BATCH, n, k) if kind == "keys" else (BATCH, k, n)
        return [(torch.randn(BATCH, m, k), torch.randn(shape)) for _ in range(4)]
    if kind == "bytes":
        rows = torch.randint(-128, 128, (m, k), dtype=torch.int8)
        return [(rows, torch.randint(-128, 128, (n, k), dtype=torch.int8)) for _ in range(16)]
    count = max(min(16, _BYTES // (n * k * dtype.itemsize)), 2)
    x, b = torch.randn(m, k).to(dtype), torch.randn(n).to(dtype)
    shape = (n, k) if kind == "linear" else (k, n)
    return [(x, torch.randn(shape).to(dtype), b) for _ in range(count)]


def measure(m: int, n: int, k: int, dtype: torch.dtype, kind: str, seconds: float) -> list[float]:
    """Microseconds of the call and of the kernel."""
    programs = [build(schedule(graph(m, n, k, dtype, kind, own))) for own in (False, True)]
    for program in programs:
        assert program.fallback_reason is None, program.fallback_reason
    return _times(programs, _inputs(m, n, k, dtype, kind), seconds)


def main(report: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--kind", default="linear", choices=("linear", "matrix", "bytes", *BATCHED))
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--matrices", nargs="+", default=[f"{n}x{k}" for n, k in MATRICES])
    given = parser.parse_args()
    dtype = getattr(torch, given.dtype)
    for threads in given.threads:
        torch.set_num_threads(threads)
        what = "int8" if given.kind == "bytes" else given.dtype
        report(f"\n{given.kind}, {what}, threads: {threads}; us of the call / of the kernel\n")
        report("| n x k | " + " | ".join(f"m = {m}" for m in given.rows) + " |")
        report("|---|" + "---|" * len(given.rows))
        for matrix in given.matrices:
            n, k = map(int, matrix.split("x"))
            cells = []
            for m in given.rows:
                call, own = measure(m, n, k, dtype, given.kind, given.seconds)
                cells.append(f"{call:.3g} / {own:.3g} **{call / own:.2f}**")
            report(f"| {n} x {k} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
