"""Kernels of groups that are alike are built once, and are those that each would have alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from scheduler_checks import run
from scheduler_graphs import CPU, Builder, T, transformer
from test_scheduler_random import graphs

import plait_scheduler.shared_kernels as shared
from plait_ir_lowering import (
    Buffer,
    Const,
    Definition,
    DType,
    Graph,
    IndexExpr,
    Layout,
    Load,
    Op,
    Pointwise,
    Sym,
    TensorRef,
    Var,
)
from plait_scheduler import Launch, Schedule, SchedulerOptions, plan
from plait_scheduler.shared_kernels import SharedKernels

Patch = pytest.MonkeyPatch


def apart(graph: Graph, options: SchedulerOptions | None = None) -> Schedule:
    """The schedule where each group's kernel is built for it, over the graph's own names."""

    def build(self: SharedKernels, group, stored):
        buffers = dict(self.buffers)
        return shared.build_kernel(group, stored, buffers, self.options, self.wide)

    with Patch.context() as patch:
        patch.setattr(SharedKernels, "build", build)
        return plan(graph, options=options)


def check(graph: Graph, options: SchedulerOptions | None = None) -> Schedule:
    with Patch.context() as patch:  # windows have tests of their own
        patch.setattr(shared, "windows_of", lambda group, buffers: {})
        together = plan(graph, options=options)
    alone = apart(graph, options)
    assert together.program == alone.program
    assert together.decisions == alone.decisions
    return together


def built(graph: Graph) -> int:
    """How many kernels are built."""
    count = 0
    build = shared.build_kernel

    def counted(*args):
        nonlocal count
        count += 1
        return build(*args)

    with Patch.context() as patch:
        patch.setattr(shared, "build_kernel", counted)
        plan(graph)
    return count


def test_layers_build_each_kernel_once() -> None:
    few, many = (builder.graph(y) for builder, y in map(transformer, (3, 9)))
    assert built(few) == built(many)
    made = check(many)
    launches = [step for step in made.program.steps if isinstance(step, Launch)]
    assert len(launches) > 6 * len(made.program.kernels)


def test_layers_compute_what_they_should() -> None:
    builder, y = transformer(3)
    check(builder.graph(y))
    run(builder, y)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs())
def test_random_graphs_have_the_same_kernels_either_way(made: tuple[Builder, list[T]]) -> None:
    builder, outputs = made
    check(builder.graph(*outputs))
    check(builder.graph(*outputs), SchedulerOptions(simplify_loops=False, fuse_siblings=False))


def computed(
    inputs: Sequence[Layout],
    bodies: Sequence[Callable[..., object]],
    *,
    dtype: DType = DType.f32,
    size: Sequence[IndexExpr | int] = (4, 6),
) -> Graph:
    """A graph of one kernel for each body, a function of the inputs' elements at a point."""
    given = tuple(Buffer(f"x{n}", dtype, CPU, layout) for n, layout in enumerate(inputs))
    at = tuple(Var(f"i{n}", extent) for n, extent in enumerate(size))
    places = [var.expr for var in at]
    definitions = []
    for number, body in enumerate(bodies):
        value = body(*(Load(buffer.name, places, dtype) for buffer in given))
        buffer = Buffer(f"y{number}", value.dtype, CPU, Layout.of(list(size)))
        definitions.append(Definition((buffer,), Pointwise(at, value)))
    outputs = tuple(TensorRef(f"y{n}") for n in range(len(bodies)))
    return Graph("told_apart", given, tuple(definitions), outputs)


def sin(value):
    return Op("sin", [value])


def sum_of(*values):
    return Op("add", list(values))


def kernels(graph: Graph) -> int:
    """How many kernels a graph has whose groups are not fused; checks them."""
    options = SchedulerOptions(fuse_siblings=False, fuse_pointwise=False)
    return len(check(graph, options).program.kernels)


ROWS, COLUMNS = Layout.of([4, 6]), Layout.of([4, 6], [1, 4])


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        # Equal but for their names.
        (computed([ROWS, ROWS], [lambda x, y: sin(x), lambda x, y: sin(y)]), 1),
        # One operand twice is not two operands.
        (computed([ROWS, ROWS], [lambda x, y: sum_of(x, x), lambda x, y: sum_of(x, y)]), 2),
        # Strides, where the loops cannot be merged either.
        (computed([ROWS, COLUMNS], [lambda x, y: sin(x), lambda x, y: sin(y)]), 2),
        # Sizes in memory.
        (
            computed(
                [Layout.of([4, 6], [8, 1]), Layout.of([4, 6], [12, 1])],
                [lambda x, y: sin(x), lambda x, y: sin(y)],
            ),
            2,
        ),
        # Constants, by their bits.
        (
            computed(
                [ROWS],
                [
                    lambda x: sum_of(x, Const(0.0, DType.f32)),
                    lambda x: sum_of(x, Const(-0.0, DType.f32)),
                    lambda x: sum_of(x, Const(1.0, DType.f32)),
                    lambda x: sum_of(x, Const(1.0, DType.f32)),
                ],
            ),
            3,
        ),
        # Element types of what is stored.
        (
            computed(
                [ROWS],
                [
                    lambda x: Op("to", [x], DType.f64),
                    lambda x: Op("to", [x], DType.i32),
                    lambda x: Op("to", [x], DType.i64),
                ],
            ),
            3,
        ),
    ],
    ids=["names", "alias", "order", "strides", "constants", "types"],
)
def test_what_kernels_depend_on_tells_them_apart(graph: Graph, expected: int) -> None:
    assert kernels(graph) == expected


def test_open_sizes_are_told_apart() -> None:
    n, m = Sym("n", 2).expr, Sym("m", 2).expr
    sizes = [(n, m), (m, n), (n, m)]
    given = tuple(Buffer(f"x{k}", DType.f32, CPU, Layout.of(list(s))) for k, s in enumerate(sizes))
    definitions = []
    for number, (buffer, size) in enumerate(zip(given, sizes, strict=True)):
        at = (Var("i0", size[0]), Var("i1", size[1]))
        load = Load(buffer.name, [var.expr for var in at], DType.f32)
        value = Op("mul", [load, Load(buffer.name, [at[0].expr, 0 * at[1].expr], DType.f32)])
        made = Buffer(f"y{number}", DType.f32, CPU, Layout.of(list(size)))
        definitions.append(Definition((made,), Pointwise(at, value)))
    outputs = tuple(TensorRef(f"y{k}") for k in range(3))
    assert kernels(Graph("open", given, tuple(definitions), outputs)) == 2


def test_what_is_stored_tells_kernels_apart() -> None:
    """Of equal groups one hands out a value on the way, and one reads it elsewhere too."""
    builder = Builder()
    results, handed = [], []
    for number in range(3):
        x = builder.input(torch.rand(8, 8))
        middle = builder.unary("sin", x)
        results.append(builder.mm(builder.unary("exp", middle), builder.input(torch.rand(8, 8))))
        handed += [middle] if number == 1 else []
    program = check(builder.graph(*results, *handed)).program
    assert sorted(len(kernel.params) for kernel in program.kernels) == [2, 3]
