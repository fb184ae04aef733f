"""What one external call costs by each way that it can take, as Markdown.

Each op is called on 4x4 tensors; a program of 17 calls less one of a single call gives the
time of a call with its results. Fastest of several runs, one thread.

    python conformance/call_costs.py
"""

from __future__ import annotations

import functools
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from cpp_calls import Call, call, extern_graph

from plait_cpp_codegen import Executable, build
from plait_cpp_codegen.external import encode, writer
from plait_ir_lowering import Graph
from plait_scheduler import schedule
from plait_utils import DiskCache

MANY, CALLS, ROUNDS = 17, 1000, 15
A = torch.ops.aten
X, IMAGE, INDEX = torch.randn(4, 4), torch.randn(1, 2, 4, 4), torch.tensor([1, 0, 2, 3])
CASES: dict[str, tuple[Call, list[torch.Tensor]]] = {
    "mm.out": (call(A.mm.out, X, X), [X]),
    "addmm.out": (call(A.addmm.out, X, X, X, beta=1.0, alpha=1.0), [X]),
    "convolution": (
        call(
            A.convolution.default,
            *(IMAGE, torch.randn(2, 2, 1, 1), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        ),
        [],
    ),
    "avg_pool2d": (call(A.avg_pool2d.default, IMAGE, [2, 2]), []),
    "cat": (call(A.cat.default, [X, X], 0), []),
    "cumsum": (call(A.cumsum.default, X, 0), []),
    "index": (call(A.index.Tensor, X, [INDEX]), []),
    "index_put": (call(A.index_put.default, X, [INDEX], X), []),
    "topk": (call(A.topk.default, X, 2), []),
    "gather": (call(A.gather.default, X, 0, INDEX.view(4, 1)), []),
    "roll": (call(A.roll.default, X, [1], [0]), []),
    "rand": (call(A.rand.default, [4, 4]), []),
    "scatter (number)": (call(A.scatter.value, X, 0, INDEX.view(4, 1), 2), []),
}


def graph(made: Call, outs: list[torch.Tensor], count: int) -> Graph:
    results = [made(*[torch.empty_like(out) for out in outs]) for _ in range(count)]
    return extern_graph([made] * count, results)


def seconds(run: Callable[[], object], calls: int = CALLS) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(calls):
            run()
        best = min(best, (time.perf_counter() - start) / calls)
    return best


def refuse(_: object) -> encode.Encoded:
    raise encode.NotEncodable("the other way is measured")


def by(way: str, made: Call, outs: list[torch.Tensor], cache: DiskCache) -> float | None:
    """Nanoseconds of a call; None where it cannot go this way."""
    shim_of, encode_call = writer.shim_of, writer.encode_call
    if way != "C function":
        writer.shim_of = lambda *_: None
    if way == "Python":
        writer.encode_call = refuse
    try:
        built: list[tuple[Executable, list[torch.Tensor]]] = []
        for count in (1, MANY):
            executable = build(schedule(graph(made, outs, count)), cache=cache)
            built.append((executable, made.inputs() * count))
        source = built[0][0].source or ""
        if way == "C function" and "plait_functions[0])" not in source:
            return None
        if way == "dispatcher" and "0, 0, 0, " in source.split("ExternCall call0 = ")[1][:120]:
            return None
        few, many = (seconds(lambda e=e, x=x: e(*x)) for e, x in built)
        return (many - few) / (MANY - 1) * 1e9
    finally:
        writer.shim_of, writer.encode_call = shim_of, encode_call


def main() -> None:
    torch.set_num_threads(1)
    print("| call | C function | dispatcher | Python | eager |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        cache = DiskCache(Path(folder))
        for name, (made, outs) in CASES.items():
            times = [by(way, made, outs, cache) for way in ("C function", "dispatcher", "Python")]
            names = [argument.name for argument in made.op._schema.arguments if argument.is_out]
            kwargs = made.kwargs | dict(zip(names, outs, strict=True))
            eager = functools.partial(made.op, *made.args, **kwargs)
            times.append(seconds(eager) * 1e9)
            cells = ["–" if t is None else f"{t:.0f}" for t in times]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
