"""Results that are written back to inputs, and launches that may run at the same time."""

from dataclasses import replace

import pytest
import torch

from plait_ir_lowering import (
    Buffer,
    CheckedIndex,
    Const,
    Definition,
    Device,
    DType,
    ExternCall,
    Graph,
    Layout,
    Load,
    Op,
    Pointwise,
    TensorRef,
    Var,
    as_index,
    parse_graph,
)
from plait_scheduler import (
    ArenaStorage,
    CopyBack,
    ExternStorage,
    Free,
    Launch,
    ProgramError,
    SchedulerOptions,
    load_python,
    parse_program,
    print_program,
    render_python,
    schedule,
    verify_program,
)

CPU = Device("cpu")


def vector(name, size=6):
    return Buffer(name, DType.f32, CPU, Layout.of([size]))


def doubled(source, name, size=6, turned=False):
    """`name` = 2 * `source`, of elements in reversed order if `turned`."""
    at = Var("i0", size)
    place = size - 1 - at.expr if turned else at.expr
    value = Op("mul", [Load(source, [place], DType.f32), Const(2.0, DType.f32)])
    return Definition((vector(name, size),), Pointwise((at,), value))


def updates(count=3):
    """Inputs x0, x1, ... of different sizes, each to be doubled."""
    inputs = tuple(vector(f"x{n}", 4 + n) for n in range(count))
    made = tuple(doubled(f"x{n}", f"y{n}", 4 + n) for n in range(count))
    mutations = tuple((f"x{n}", TensorRef(f"y{n}")) for n in range(count))
    return Graph("updates", inputs, made, (), mutations)


def copies(program):
    return [step for step in program.steps if isinstance(step, CopyBack)]


def launches(program):
    return [step for step in program.steps if isinstance(step, Launch)]


def check(graph, inputs):
    """The program's outputs, after comparing it with one that takes no liberties."""
    program = schedule(graph)
    verify_program(program)
    assert parse_program(print_program(program)) == program
    careful = SchedulerOptions(write_in_place=False, run_together=False)
    mine, other = ([each.clone() for each in inputs] for _ in range(2))
    found = load_python(render_python(program))(mine)
    expected = load_python(render_python(schedule(graph, options=careful)))(other)
    for one, two in zip((*found, *mine), (*expected, *other), strict=True):
        assert torch.equal(one, two)
    return program


def test_updates_are_made_in_place_and_at_the_same_time():
    program = check(updates(), [torch.randn(4 + n) for n in range(3)])
    assert not copies(program)
    assert [step.together for step in launches(program)] == [False, True, True]
    assert program.arena_nbytes.as_int() == 0


def x_and(*definitions, outputs=(), mutations=(("x", TensorRef("y")),), inputs=("x",)):
    return Graph("graph", tuple(map(vector, inputs)), definitions, outputs, mutations)


def gathered():
    """`z` = x[index], whose index may be out of range."""
    at = Var("i0", 6)
    index = CheckedIndex(Load("index", [at.expr], DType.i64), as_index(6))
    body = Pointwise((at,), Load("x", [index], DType.f32))
    return Definition((vector("z"),), body)


KEPT_APART = {
    "read later": x_and(
        doubled("x", "y"), doubled("x", "z", turned=True), outputs=(TensorRef("z"),)
    ),
    "read elsewhere": x_and(doubled("x", "y", turned=True)),
    "handed out": x_and(doubled("x", "y"), outputs=(TensorRef("y"),)),
    "a part": x_and(doubled("x", "y"), mutations=(("x", TensorRef("y", Layout.of([6], [0]))),)),
    "for two": x_and(
        doubled("x", "y"),
        mutations=(("x", TensorRef("y")), ("w", TensorRef("y"))),
        inputs=("x", "w"),
    ),
    "before a call": x_and(
        doubled("x", "y"),
        Definition((vector("z"),), ExternCall("aten::neg", "", (TensorRef("y"),))),
        outputs=(TensorRef("z"),),
    ),
}


@pytest.mark.parametrize("name", KEPT_APART)
def test_what_is_not_safe_is_copied_at_the_end(name):
    graph = KEPT_APART[name]
    program = check(graph, [torch.randn(6) for _ in graph.inputs])
    assert copies(program)


def test_inputs_are_written_after_the_last_step_that_can_fail():
    index = Buffer("index", DType.i64, CPU, Layout.of([6]))
    graph = x_and(doubled("w", "y"), gathered(), outputs=(TensorRef("z"),), inputs=("w", "x"))
    graph = replace(graph, inputs=(*graph.inputs, index), mutations=(("w", TensorRef("y")),))
    program = schedule(graph)
    inputs = [torch.randn(6), torch.randn(6), torch.tensor([0, 1, 2, 3, 4, 6])]
    before = inputs[0].clone()
    with pytest.raises(IndexError):
        load_python(render_python(program))(inputs)
    assert torch.equal(inputs[0], before)


def test_a_result_that_is_read_again_stays_in_the_input():
    graph = x_and(doubled("x", "y"), doubled("y", "z", turned=True), outputs=(TensorRef("z"),))
    program = check(graph, [torch.randn(6)])
    assert len(program.kernels) == 2


def test_an_input_is_shown_as_it_was():
    graph = x_and(doubled("x", "y"), outputs=(TensorRef("x"),))
    check(graph, [torch.randn(6)])


def test_launches_beside_each_other_share_no_memory():
    program = schedule(updates())
    first, *others = launches(program)
    wrong = replace(others[0], kernel=first.kernel, buffers=first.buffers)
    steps = tuple(wrong if step is others[0] else step for step in program.steps)
    with pytest.raises(ProgramError, match="no launch beside it"):
        verify_program(replace(program, steps=steps))
    lone = tuple(replace(s, together=True) if s is first else s for s in program.steps)
    with pytest.raises(ProgramError, match="follows it"):
        verify_program(replace(program, steps=lone))


def test_what_is_copied_back_alone_is_a_temporary():
    """Its memory is not handed out, and lives until the copy."""
    graph = KEPT_APART["before a call"]
    program = check(graph, [torch.randn(6)])
    assert [step.source.buffer for step in copies(program)] == ["y"]
    storage = {buffer.name: buffer.storage for buffer in program.buffers}
    assert isinstance(storage["y"], ArenaStorage)
    assert isinstance(storage["z"], ExternStorage)


def test_a_copy_that_was_to_be_in_place_lives_until_the_end():
    """Fuel stops the decision after the plan."""
    program = schedule(updates(), options=SchedulerOptions(fuel=0))
    verify_program(program)
    assert len(copies(program)) == 3
    assert program.arena_nbytes.as_int() == 3 * 64


COUNTING = """\
graph counting()
  input x: f32[6] on cuda:0
  input count: f32[] on cpu
  define more: f32[] on cpu
    for  = add(count[()], f32(1.0))
  define tenth: f32[] on cpu
    for  = div(more[()], f32(10.0))
  define y: f32[6] on cuda:0
    for i0: 6 = add(mul(x[i0], tenth[()]), more[()])
  write count = more
  return y, tenth
"""


@pytest.mark.parametrize("write_in_place", [False, True])
def test_what_is_written_back_beside_a_gpu_has_memory_of_its_own_to_the_end(
    write_in_place: bool,
) -> None:
    """The arena is the GPU's."""
    options = replace(SchedulerOptions.for_gpu(), write_in_place=write_in_place)
    program = schedule(parse_graph(COUNTING), options=options)
    verify_program(program)
    freed = {step.buffer for step in program.steps if isinstance(step, Free)}
    assert "more" not in freed
    assert not program.arena_nbytes.terms
