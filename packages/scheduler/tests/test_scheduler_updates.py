"""Scatters into inputs that are written back: in the inputs' memory, and undone after an error."""

from dataclasses import replace

import pytest
import torch

from plait_ir_lowering import (
    Buffer,
    CheckedIndex,
    Definition,
    Device,
    DType,
    ExternCall,
    Graph,
    IndexValue,
    Layout,
    Load,
    Masked,
    Op,
    Pointwise,
    Scatter,
    ScatterKind,
    TensorRef,
    Var,
    as_index,
    rewrite,
    substitute,
)
from plait_scheduler import (
    CopyBack,
    Free,
    OnError,
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
ROWS, WIDTH, NEW = 32, 4, 3


def matrix(name, rows=ROWS):
    return Buffer(name, DType.f32, CPU, Layout.of([rows, WIDTH]))


def indices(name):
    return Buffer(name, DType.i64, CPU, Layout.of([NEW]))


def rows_written(target, name, at="at", kind=ScatterKind.ASSIGN, source="new"):
    """`name` = `target` with the rows of `source` at the places `at`."""
    row, column = Var("w0", NEW), Var("w1", WIDTH)
    place = CheckedIndex(Load(at, [row.expr], DType.i64), as_index(ROWS))
    value = Load(source, [row.expr, column.expr], DType.f32)
    body = Scatter(target, (row, column), (place, column.expr), kind, value)
    return Definition((matrix(name),), body)


def doubled(source, name, rows=ROWS, shift=0):
    """`name` = 2 * `source`, of rows further down by `shift`."""
    dims = Var("i0", rows), Var("i1", WIDTH)
    load = Load(source, [dims[0].expr + shift, dims[1].expr], DType.f32)
    return Definition((matrix(name, rows),), Pointwise(dims, Op("add", [load, load])))


def graph_of(*definitions, outputs=("z",), written=("y",), inputs=("x",)):
    given = (*map(matrix, inputs), matrix("new", NEW), indices("at"))
    mutations = tuple(zip(inputs, map(TensorRef, written), strict=False))
    return Graph("graph", given, definitions, tuple(map(TensorRef, outputs)), mutations)


def numbers(graph, at=(5, 30, 5)):
    torch.manual_seed(0)
    return [
        torch.tensor(at) if buffer.dtype is DType.i64 else torch.randn([*map(int, sizes)])
        for buffer in graph.inputs
        for sizes in [[size.as_int() for size in buffer.layout.size]]
    ]


def steps(program, kind):
    return [step for step in program.steps if isinstance(step, kind)]


def check(graph):
    """The program, after comparing it with one that copies."""
    program = schedule(graph)
    verify_program(program)
    assert parse_program(print_program(program)) == program
    careful = SchedulerOptions(write_in_place=False, run_together=False)
    mine, other = numbers(graph), numbers(graph)
    found = load_python(render_python(program))(mine)
    expected = load_python(render_python(schedule(graph, options=careful)))(other)
    for one, two in zip((*found, *mine), (*expected, *other), strict=True):
        torch.testing.assert_close(one, two)
    return program


IN_PLACE = {
    "nothing else": (graph_of(rows_written("x", "y"), outputs=()), 1),
    "rows": (graph_of(rows_written("x", "y"), doubled("y", "z")), 1),
    "sums": (graph_of(rows_written("x", "y", kind=ScatterKind.ADD), doubled("y", "z")), 1),
    "two after another": (
        graph_of(
            rows_written("x", "x1", kind=ScatterKind.ADD),
            rows_written("x1", "y"),
            doubled("y", "z"),
        ),
        2,
    ),
    "two inputs": (
        graph_of(
            rows_written("x", "y"),
            rows_written("w", "v"),
            doubled("y", "z"),
            inputs=("x", "w"),
            written=("y", "v"),
        ),
        2,
    ),
    "read for what is written": (
        graph_of(
            doubled("x", "new2", NEW, 4), rows_written("x", "y", source="new2"), doubled("y", "z")
        ),
        1,
    ),
    "read before": (
        graph_of(
            doubled("x", "u"),
            Definition((matrix("z"),), ExternCall("aten::neg", "", (TensorRef("u"),))),
            rows_written("x", "y"),
        ),
        1,
    ),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_rows_are_written_in_place_and_saved_before(name):
    graph, count = IN_PLACE[name]
    program = check(graph)
    assert not steps(program, CopyBack)
    assert len(steps(program, OnError)) == count
    whole = ROWS * WIDTH * 4
    temporary = whole if name == "read before" else 0
    assert program.arena_nbytes.as_int() - temporary < whole


COPIED = {
    "read later": graph_of(rows_written("x", "y"), doubled("y", "u"), doubled("x", "z")),
    "handed out": graph_of(rows_written("x", "y"), outputs=("y",)),
    "shown as it was": graph_of(rows_written("x", "y"), outputs=("x",)),
    "for two": graph_of(
        rows_written("x", "y"), doubled("y", "z"), inputs=("x", "w"), written=("y", "y")
    ),
}


@pytest.mark.parametrize("name", COPIED)
def test_what_is_not_safe_is_copied(name):
    assert steps(check(COPIED[name]), CopyBack)


def test_most_of_an_input_is_not_saved():
    graph = graph_of(rows_written("x", "y"), doubled("y", "z"))
    few = Buffer("x", DType.f32, CPU, Layout.of([NEW + 1, WIDTH]))
    body = graph.definitions[0].body
    row, column = body.ranges
    place = CheckedIndex(Load("at", [row.expr], DType.i64), as_index(NEW + 1))
    written = replace(body, index=(place, column.expr))
    made = Definition((replace(few, name="y"),), written)
    graph = Graph("graph", (few, *graph.inputs[1:]), (made,), (), (("x", TensorRef("y")),))
    assert steps(schedule(graph), CopyBack)


def failing():
    """Two updates, then rows of `new` at places, of which there are not so many."""
    dims = Var("i0", NEW), Var("i1", WIDTH)
    place = CheckedIndex(Load("at", [dims[0].expr], DType.i64), as_index(NEW))
    late = Definition(
        (matrix("z", NEW),), Pointwise(dims, Load("y2", [place, dims[1].expr], DType.f32))
    )
    halves = Definition((matrix("y2", NEW),), ExternCall("aten::neg", "", (TensorRef("part"),)))
    first = rows_written("x", "x1", kind=ScatterKind.ADD)
    part = doubled("y", "part", NEW)
    return graph_of(first, rows_written("x1", "y"), part, halves, late)


def test_inputs_hold_what_they_held_after_an_error():
    graph = failing()
    program = schedule(graph)
    verify_program(program)
    assert not steps(program, CopyBack)
    run = load_python(render_python(program))
    for at in ((0, 30, 1), (31, 0, 0), (40, 1, 2), (0, 1, -33)):
        inputs = numbers(graph, at)
        before = [each.clone() for each in inputs]
        with pytest.raises(IndexError):
            run(inputs)
        assert all(map(torch.equal, inputs, before))
    inputs = numbers(graph, (0, 2, 1))
    run(inputs)
    assert not torch.equal(inputs[0], numbers(graph)[0])


def test_what_is_saved_stays_as_long_as_a_step_can_fail():
    program = schedule(failing())
    (*_, undo) = steps(program, OnError)
    saved = undo.launch.buffers[1]
    others = [step for step in program.steps if step != Free(saved)]
    at = program.steps.index(undo) + 2
    with pytest.raises(ProgramError, match="as long as one can occur"):
        verify_program(replace(program, steps=(*others[:at], Free(saved), *others[at:])))


def part_replaced(target, name, first, last, source="new", value=None):
    """`name` = `target` with rows from `first` to `last` replaced by those of `source`."""
    row, column = dims = Var("i0", ROWS), Var("i1", WIDTH)
    here = IndexValue(row.expr)
    limits = [
        Op("ge", [here, IndexValue(as_index(first))]),
        Op("le", [here, IndexValue(as_index(last))]),
    ]
    value = value or Load(source, [row.expr - first, column.expr], DType.f32)
    kept = Load(target, [row.expr, column.expr], DType.f32)
    body = Pointwise(dims, Masked(Op("logical_and", limits), value, kept))
    return Definition((matrix(name),), body)


def test_parts_are_written_in_place():
    graph = graph_of(part_replaced("x", "y", 4, 6), doubled("y", "z"))
    program = check(graph)
    assert not steps(program, CopyBack)
    assert len(steps(program, OnError)) == 1
    twice = graph_of(
        part_replaced("x", "x1", 4, 6), part_replaced("x1", "y", 5, 7), doubled("y", "z")
    )
    program = check(twice)
    assert not steps(program, CopyBack)
    assert len(steps(program, OnError)) == 2


def test_merged_loops_write_a_part():
    """One loop over a place of a stack, with `//` and `%` for their rows and columns."""
    sizes = 4, 16, 8, 6
    stack, part = Layout.of(sizes), Layout.of(sizes[1:])
    x, y, z = (Buffer(name, DType.f32, CPU, stack) for name in "xyz")
    dims = layer, *inner = tuple(Var(f"i{n}", size) for n, size in enumerate(sizes))
    here = Op("eq", [IndexValue(layer.expr), IndexValue(as_index(1))])
    own = Load("new", [var.expr for var in inner], DType.f32)
    kept, load = (Load(name, [var.expr for var in dims], DType.f32) for name in "xy")
    definitions = (
        Definition((y,), Pointwise(dims, Masked(here, own, kept))),
        Definition((z,), Pointwise(dims, Op("add", [load, load]))),
    )
    given = x, Buffer("new", DType.f32, CPU, part)
    program = schedule(
        Graph("graph", given, definitions, (TensorRef("z"),), (("x", TensorRef("y")),))
    )
    verify_program(program)
    assert not steps(program, CopyBack)
    assert len(steps(program, OnError)) == 1


def test_parts_of_the_input_are_read_before_others_are_written():
    row, column = Var("i0", ROWS), Var("i1", WIDTH)
    above = Load("x", [row.expr - 1, column.expr], DType.f32)
    dims = row, column
    made = part_replaced("x", "y", 4, 6)
    condition = made.body.value.mask
    mine = {var: new.expr for var, new in zip(made.body.ranges, dims, strict=True)}
    mask = rewrite(condition, lambda _: None, lambda expr: substitute(expr, mine))
    kept = Load("x", [row.expr, column.expr], DType.f32)
    body = Pointwise(dims, Masked(mask, Op("add", [above, kept]), kept))
    program = check(graph_of(replace(made, body=body), doubled("y", "z")))
    assert not steps(program, CopyBack)
    assert program.arena_nbytes.as_int() < ROWS * WIDTH * 4


OTHER_PARTS = {
    "read later": graph_of(part_replaced("x", "y", 4, 6), doubled("y", "u"), doubled("x", "z")),
    "most of it": graph_of(
        part_replaced("x", "y", 0, 25, value=Load("new", [as_index(0)] * 2, DType.f32)),
        doubled("y", "z"),
    ),
    "nothing of it": graph_of(part_replaced("x", "y", 7, 6), doubled("y", "z")),
    "beyond it": graph_of(
        part_replaced("x", "y", 30, 40, value=Load("new", [as_index(0)] * 2, DType.f32)),
        doubled("y", "z"),
    ),
    "used between": graph_of(
        part_replaced("x", "x1", 4, 6),
        part_replaced("x1", "y", 5, 7),
        doubled("x1", "z"),
    ),
}


@pytest.mark.parametrize("name", OTHER_PARTS)
def test_other_parts_are_loops_over_the_whole(name):
    program = check(OTHER_PARTS[name])
    assert not steps(program, OnError)
