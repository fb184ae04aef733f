"""Programs for sizes that are known only when they run."""

from __future__ import annotations

import torch

from plait_ir_lowering import (
    Buffer,
    Const,
    Definition,
    Device,
    DType,
    ExternCall,
    Graph,
    IndexExpr,
    Layout,
    Load,
    Op,
    Pointwise,
    Reduction,
    ReductionKind,
    Sym,
    TensorRef,
    Value,
    Var,
    as_index,
)
from plait_scheduler import (
    Program,
    SchedulerOptions,
    load_python,
    memory_report,
    parse_program,
    plan,
    print_program,
    render_python,
)

F32 = DType.f32
WIDTH = 16


def _buffer(name: str, *size: IndexExpr | int) -> Buffer:
    return Buffer(name, F32, Device("cpu"), Layout.of(size))


def _at(name: str, *index: Var | int) -> Value:
    return Load(name, [i.expr if isinstance(i, Var) else as_index(i) for i in index], F32)


def _block(rows: IndexExpr) -> Graph:
    """h = x @ w; y = layer_norm(x + relu(h + b)); z = y @ w."""
    i, j, k, r = Var("i0", rows), Var("i1", WIDTH), Var("i1", WIDTH), Var("r0", WIDTH)
    zero, count = Const(0.0, F32), Const(float(WIDTH), F32)
    act = Op("maximum", [Op("add", [_at("h", i, j), _at("b", j)]), zero])
    scale = Op("rsqrt", [Op("add", [Op("div", [_at("var", i), count]), Const(1e-5, F32)])])
    centred = Op("sub", [_at("s", i, k), Op("div", [_at("total", i), count])])
    row = Op("sub", [_at("s", i, r), Op("div", [_at("total", i), count])])
    return Graph(
        "block",
        (_buffer("x", rows, WIDTH), _buffer("w", WIDTH, WIDTH), _buffer("b", WIDTH)),
        (
            _mm("h", "x", rows),
            Definition(
                (_buffer("s", rows, WIDTH),), Pointwise((i, j), Op("add", [_at("x", i, j), act]))
            ),
            Definition(
                (_buffer("total", rows),), Reduction((i,), (r,), ReductionKind.SUM, _at("s", i, r))
            ),
            Definition(
                (_buffer("var", rows),),
                Reduction((i,), (r,), ReductionKind.SUM, Op("square", [row])),
            ),
            Definition(
                (_buffer("y", rows, WIDTH),), Pointwise((i, k), Op("mul", [centred, scale]))
            ),
            _mm("z", "y", rows),
        ),
        (TensorRef("z", Layout.of([rows * WIDTH])),),
    )


def _mm(name: str, left: str, rows: IndexExpr) -> Definition:
    args = (TensorRef(left, Layout.of([rows, WIDTH])), TensorRef("w"))
    return Definition((_buffer(name, rows, WIDTH),), ExternCall("aten::mm", "out", args, True))


def _eager(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    s = x + (x @ w + b).relu()
    return (torch.nn.functional.layer_norm(s, (WIDTH,)) @ w).reshape(-1)


def _program(rows: IndexExpr) -> Program:
    return plan(_block(rows)).program


def test_one_program_runs_for_all_sizes() -> None:
    program = _program(Sym("s0", 2).expr)
    assert program.symbols == ("s0",)
    assert len(program.kernels) == 1
    assert parse_program(print_program(program)) == program
    run = load_python(render_python(program))
    torch.manual_seed(0)
    w, b = torch.randn(WIDTH, WIDTH), torch.randn(WIDTH)
    for rows in (2, 3, 17):
        x = torch.randn(rows, WIDTH)
        (got,) = run([x, w, b])
        torch.testing.assert_close(got, _eager(x, w, b), rtol=1e-4, atol=1e-4)


def test_known_and_unknown_sizes_fuse_alike() -> None:
    known, unknown = _program(as_index(64)), _program(Sym("s0", 2).expr)
    kinds = [[type(s).__name__ for s in p.kernels[0].statements] for p in (known, unknown)]
    assert kinds[0] == kinds[1]
    assert len(known.steps) == len(unknown.steps)


def test_sums_over_open_sizes_are_split_by_what_is_known() -> None:
    size = (Sym("s0", 2).expr, 64, 96)
    over = [Var(f"r{axis}", extent) for axis, extent in enumerate(size)]
    total = Definition(
        (_buffer("y"),), Reduction((), tuple(over), ReductionKind.SUM, _at("x", *over))
    )
    graph = Graph("total", (_buffer("x", *size),), (total,), (TensorRef("y"),))
    options = SchedulerOptions(min_split_elements=64 * 96)
    program = plan(graph, options=options).program
    assert len(program.kernels) == 2
    assert (
        len(plan(graph, options=SchedulerOptions(min_split_elements=64 * 97)).program.kernels) == 1
    )
    run = load_python(render_python(program))
    for batch in (2, 5):
        x = torch.randn(batch, 64, 96)
        (got,) = run([x])
        torch.testing.assert_close(got, x.sum(), rtol=1e-4, atol=1e-3)


def test_memory_is_planned_in_terms_of_the_sizes() -> None:
    program = _program(Sym("s0", 2).expr)
    assert str(memory_report(program).outputs) == f"s0*{WIDTH * 4}"
    assert "s0" in str(program.arena_nbytes)
