"""What programs of GPUs write over inputs: parts in place, copies together, and in Python last."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from plait_ir_lowering import (
    Buffer,
    CheckedIndex,
    Const,
    Definition,
    DType,
    ExternCall,
    Graph,
    Layout,
    Load,
    Op,
    Pointwise,
    Scatter,
    ScatterKind,
    TensorRef,
    Var,
    as_index,
    parse_graph,
    print_graph,
)
from plait_ir_lowering import Device as Place
from plait_scheduler import (
    Access,
    CombinedKernel,
    CopyBack,
    Launch,
    OnError,
    Program,
    SchedulerOptions,
    SharedStorage,
    load_python,
    parse_program,
    print_program,
    render_python,
    schedule,
    verify_program,
)

CPU = Place("cpu")
GPU = SchedulerOptions.for_gpu()
SIZES = (3, 40, 7, 64, 3)


def buffer(name: str, *size: int, dtype: DType = DType.f32) -> Buffer:
    return Buffer(name, dtype, CPU, Layout.of(size))


def statistics() -> Graph:
    """Inputs that are updated by what a call behind it reads too, so that they are copied to."""
    made: list[Definition] = []
    for n, size in enumerate(SIZES):
        at = Var("i0", size)
        value = Op("mul", [Load(f"x{n}", [at.expr], DType.f32), Const(0.5, DType.f32)])
        made.append(Definition((buffer(f"y{n}", size),), Pointwise((at,), value)))
    calls = [
        Definition((buffer(f"z{n}", size),), ExternCall("aten::neg", "", (TensorRef(f"y{n}"),)))
        for n, size in enumerate(SIZES)
    ]
    inputs = tuple(buffer(f"x{n}", size) for n, size in enumerate(SIZES))
    mutations = tuple((f"x{n}", TensorRef(f"y{n}")) for n in range(len(SIZES)))
    outputs = tuple(TensorRef(f"z{n}") for n in range(len(SIZES)))
    return Graph("statistics", inputs, (*made, *calls), outputs, mutations)


def cache() -> Graph:
    """Rows of an input are replaced, and a call reads it then."""
    row, column = Var("w0", 2), Var("w1", 4)
    place = CheckedIndex(Load("at", [row.expr], DType.i64), as_index(32))
    value = Load("new", [row.expr, column.expr], DType.f32)
    body = Scatter("x", (row, column), (place, column.expr), ScatterKind.ASSIGN, value)
    call = ExternCall("aten::neg", "", (TensorRef("y"),))
    return Graph(
        "cache",
        (buffer("x", 32, 4), buffer("new", 2, 4), buffer("at", 2, dtype=DType.i64)),
        (Definition((buffer("y", 32, 4),), body), Definition((buffer("z", 32, 4),), call)),
        (TensorRef("z"),),
        (("x", TensorRef("y")),),
    )


def on_gpu(graph: Graph, options: SchedulerOptions = GPU) -> Program:
    program = schedule(
        parse_graph(print_graph(graph).replace(" on cpu", " on cuda:0")), options=options
    )
    verify_program(program)
    assert parse_program(print_program(program)) == program
    return program


def on_cpu(program: Program) -> Program:
    """The same, as this machine can run it."""
    return parse_program(print_program(program).replace("cuda:0", "cpu"))


def steps(program: Program, kind: type) -> list:
    return [step for step in program.steps if isinstance(step, kind)]


def test_copies_back_are_launches_that_are_combined() -> None:
    program = on_gpu(statistics())
    assert not steps(program, CopyBack)
    kernels = {kernel.name: kernel for kernel in program.kernels}
    storage = {each.name: each.storage for each in program.buffers}
    whole, rest = steps(program, Launch)[-2:]  # those of whole times 16 bytes, and others
    written = []
    for launch in (whole, rest):
        kernel = kernels[launch.kernel]
        assert isinstance(kernel, CombinedKernel)
        given = zip(kernel.params, launch.buffers, strict=True)
        written += [storage[name] for param, name in given if param.access is not Access.READ]
    assert {*written} == {SharedStorage(f"x{n}") for n in range(len(SIZES))}


@pytest.mark.parametrize("writes_last", [False, True])
def test_copies_back_are_right(writes_last: bool) -> None:
    run = load_python(render_python(on_cpu(on_gpu(statistics())), writes_last=writes_last))
    inputs = [torch.randn(size) for size in SIZES]
    wanted = [each / 2 for each in inputs]
    for found, meant in zip(run(inputs), wanted, strict=True):
        torch.testing.assert_close(found, -meant)
    for one, meant in zip(inputs, wanted, strict=True):
        torch.testing.assert_close(one, meant)


def test_copies_stay_where_launches_are_not_combined() -> None:
    program = on_gpu(statistics(), replace(GPU, combine_launches=False))
    assert len(steps(program, CopyBack)) == len(SIZES)


@pytest.mark.parametrize("writes_last", [False, True])
@pytest.mark.parametrize("wrong", [None, 32, -40])
def test_rows_are_replaced_in_place_and_put_back(writes_last: bool, wrong: int | None) -> None:
    program = on_gpu(cache())
    assert len(steps(program, OnError)) == 1
    assert not steps(program, CopyBack)
    run = load_python(render_python(on_cpu(program), writes_last=writes_last))
    x, new, at = torch.randn(32, 4), torch.randn(2, 4), torch.tensor([5, 30])
    meant = x.clone()
    if wrong is None:
        meant[at] = new
        torch.testing.assert_close(run([x, new, at])[0], -meant)
    else:
        at[1] = wrong
        with pytest.raises(IndexError):
            run([x, new, at])
    assert torch.equal(x, meant)


FAILING = """\
program failing()
  inputs x, y
  arena 0
  buffer x: f32[2, 3] on cpu = input 0
  buffer y: f32[6] on cpu = input 1
  buffer a: f32[2, 3] on cpu = shared x
  buffer b: f32[6] on cpu = shared y
  buffer c: f32[2, 3] on cpu = extern
  kernel twice(p0: readwrite f32[6])
    for i0: 6
      outer store p0[i0] = mul(p0[i0], f32(2.0))
  kernel ones(p0: write f32[6])
    for i0: 6
      outer store p0[i0] = f32(1.0)
  steps
    allocate a
    launch twice(a)
    allocate b
    launch ones(b)
    call new(c) = aten::cumsum(a, {dim}, None)
    free a
    free b
    return c
"""


def test_python_that_writes_last_has_written_nothing_where_a_step_fails() -> None:
    x, y = torch.randn(2, 3), torch.randn(6)
    before, versions = [x.clone(), y.clone()], (x._version, y._version)
    failing = load_python(render_python(parse_program(FAILING.format(dim=7)), writes_last=True))
    with pytest.raises(IndexError):
        failing([x, y])
    assert x.equal(before[0])
    assert y.equal(before[1])
    run = load_python(render_python(parse_program(FAILING.format(dim=1)), writes_last=True))
    (found,) = run([x, y])
    torch.testing.assert_close(found, (2 * before[0]).cumsum(1))
    assert x.equal(2 * before[0])
    assert y.equal(torch.ones(6))
    assert versions == (x._version, y._version), "whoever calls it counts its writes"


def test_python_that_writes_last_writes_to_inputs_as_they_lie() -> None:
    """Which may be parts of other tensors."""
    run = load_python(render_python(parse_program(FAILING.format(dim=0)), writes_last=True))
    whole, y = torch.randn(13), torch.randn(6)
    before = whole.clone()
    x = whole[3:9].view(2, 3)
    run([x, y])
    assert whole[3:9].equal(2 * before[3:9])
    assert whole[:3].equal(before[:3])
    assert whole[9:].equal(before[9:])
