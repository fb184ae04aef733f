"""Products write to their parts of what they are concatenated to, where that is in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from plait_ir_lowering import (
    Graph,
    Layout,
    TensorRef,
    as_index,
    interpret,
    parse_graph,
    print_graph,
    verify,
)
from plait_scheduler import (
    Allocate,
    CallExtern,
    Free,
    Launch,
    PartStorage,
    Program,
    ProgramError,
    Return,
    Schedule,
    SchedulerOptions,
    SharedStorage,
    load_python,
    parse_program,
    plan,
    print_program,
    render_python,
    verify_program,
)

DTYPES = {"f32": torch.float32, "f64": torch.float64, "c64": torch.complex64}


def joined(axis: str, *pieces: tuple[str, int | str, int | str], zero: str = "f32(0.0)") -> str:
    """The value of a concatenation, as it is lowered: pieces with where they begin and end."""
    value = zero
    for piece, start, stop in pieces:
        limits = [f"i64({n})" if isinstance(n, int) else f"index({n})" for n in (start, stop)]
        within = f"logical_and(ge(index({axis}), {limits[0]}), lt(index({axis}), {limits[1]}))"
        value = f"masked({within}, {piece}, {value})"
    return value


def columns(
    left: str = "p[i0, i1]", right: str = "q[i0, i1 - 16]", returned: str = "y", more: str = ""
) -> Graph:
    """Two products of 8 by 16, one beside the other."""
    return graph(f"""graph main()
  input a: f32[8, 24] on cpu
  input b: f32[24, 16] on cpu
  input c: f32[8, 16] on cpu
  define p: f32[8, 16] on cpu
    call out aten::mm.out(a, b)
  define q: f32[8, 16] on cpu
    call out aten::addmm.out(c, a, b, 1, 1)
  define y: f32[8, 32] on cpu
    for i0: 8, i1: 32 = {joined("i1", (left, 0, 16), (right, 16, 32))}
{more}  return {returned}
""")


def graph(text: str) -> Graph:
    made = parse_graph(text)
    verify(made)
    return made


def run(made: Graph, **options: object) -> Schedule:
    """The schedule; its program reads back and computes what the graph means."""
    schedule = plan(made, options=SchedulerOptions(**options))
    assert parse_program(print_program(schedule.program)) == schedule.program
    torch.manual_seed(0)
    given = [
        torch.randn([each.as_int() for each in b.layout.size], dtype=DTYPES[str(b.dtype)])
        for b in made.inputs
    ]
    meant = interpret(made, [each.clone() for each in given])
    found = load_python(render_python(schedule.program))(given)
    for got, expected in zip(found, meant, strict=True):
        torch.testing.assert_close(got, expected)
        assert got.stride() == expected.stride()
    return schedule


def parts(program: Program) -> dict[str, str]:
    """What is part of which buffer, and where it begins."""
    return {
        b.name: f"{b.storage.buffer} + {b.storage.offset}"
        for b in program.buffers
        if isinstance(b.storage, PartStorage)
    }


def launches(program: Program) -> int:
    return sum(isinstance(step, Launch) for step in program.steps)


def test_products_write_side_by_side():
    schedule = run(columns())
    assert parts(schedule.program) == {"p": "y + 0", "q": "y + 16"}
    assert not launches(schedule.program)
    assert "computing in its part of p with y: done" in schedule.explain()
    assert schedule.program.arena_nbytes is as_index(0)


def test_it_can_be_switched_off():
    program = run(columns(), join_products=False).program
    assert not parts(program)
    assert launches(program) == 1


def batches(size: tuple[int, int, int], axis: int, dtype: str) -> Graph:
    """Two products of batches, one behind the other along an axis."""
    places = ["i0", "i1", "i2"]
    whole, right = list(size), list(places)
    whole[axis] *= 2
    right[axis] += f" - {size[axis]}"
    value = joined(
        places[axis],
        (f"p[{', '.join(places)}]", 0, size[axis]),
        (f"q[{', '.join(right)}]", size[axis], 2 * size[axis]),
        zero="complex(f32(0.0), f32(0.0))" if dtype == "c64" else f"{dtype}(0.0)",
    )
    return graph(f"""graph main()
  input a: {dtype}[{size[0]}, {size[1]}, 8] on cpu
  input b: {dtype}[{size[0]}, 8, {size[2]}] on cpu
  define p: {dtype}{list(size)} on cpu
    call out aten::bmm.out(a, b)
  define q: {dtype}{list(size)} on cpu
    call out aten::bmm.out(a, b)
  define y: {dtype}{whole} on cpu
    for i0: {whole[0]}, i1: {whole[1]}, i2: {whole[2]} = {value}
  return y
""")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("axis", "begin"), [(0, 2 << 16), (1, 1 << 16), (2, 256)], ids=str)
def test_batches_along_each_axis(axis, begin, dtype):
    program = run(batches((2, 256, 256), axis, dtype)).program
    assert parts(program) == {"p": "y + 0", "q": f"y + {begin}"}


def test_small_matrices_of_a_batch_lie_side_by_side():
    """ATen multiplies others one by one."""
    assert len(parts(run(batches((4, 16, 24), 0, "f32")).program)) == 2
    schedule = run(batches((4, 16, 24), 1, "f32"))
    assert not parts(schedule.program)
    assert "its matrices are small" in schedule.explain()


def test_views_of_products_are_joined():
    """Rows of two dimensions, as linear layers over batches of sequences have."""
    value = joined("i2", ("p[i0*4 + i1, i2]", 0, 16), ("q[i0*4 + i1, i2 - 16]", 16, 24))
    made = graph(f"""graph main()
  input a: f32[8, 24] on cpu
  input b: f32[24, 16] on cpu
  input c: f32[24, 8] on cpu
  define p: f32[8, 16] on cpu
    call out aten::mm.out(a, b)
  define q: f32[8, 8] on cpu
    call out aten::mm.out(a, c)
  define y: f32[2, 4, 24] on cpu
    for i0: 2, i1: 4, i2: 24 = {value}
  return y
""")
    assert parts(run(made).program) == {"p": "y + 0", "q": "y + 16"}


def test_columns_and_single_rows():
    value = joined("i1", ("p[i0, 0]", 0, 1), ("q[i0, i1 - 1]", 1, 4))
    made = graph(f"""graph main()
  input a: f32[8, 24] on cpu
  input b: f32[24, 1] on cpu
  input c: f32[24, 3] on cpu
  define p: f32[8, 1] on cpu
    call out aten::mm.out(a, b)
  define q: f32[8, 3] on cpu
    call out aten::mm.out(a, c)
  define y: f32[8, 4] on cpu
    for i0: 8, i1: 4 = {value}
  return y
""")
    assert parts(run(made).program) == {"p": "y + 0", "q": "y + 1"}
    one = graph(print_graph(made).replace("f32[8,", "f32[1,").replace("i0: 8", "i0: 1"))
    assert parts(run(one).program) == {"p": "y + 0", "q": "y + 1"}


def test_what_is_no_product_is_computed_where_it_belongs():
    program = run(columns(right="exp(c[i0, i1 - 16])")).program
    assert parts(program) == {"y_part": "y + 16", "p": "y + 0"}
    assert launches(program) == 1
    three = joined("i1", ("c[i0, i1]", 0, 16), ("exp(c[i0, i1 - 16])", 16, 32))
    value = joined("i1", ("p[i0, i1 - 32]", 32, 48), zero=three)
    made = graph(f"""graph main()
  input a: f32[8, 24] on cpu
  input b: f32[24, 16] on cpu
  input c: f32[8, 16] on cpu
  define p: f32[8, 16] on cpu
    call out aten::mm.out(a, b)
  define y: f32[8, 48] on cpu
    for i0: 8, i1: 48 = {value}
  return y
""")
    program = run(made).program
    assert parts(program) == {"y_part": "y + 0", "p": "y + 32"}
    assert launches(program) == 1  # neighbours are one kernel


def test_a_whole_may_be_temporary():
    more = """  define z: f32[8, 8] on cpu
    call out aten::mm.out(y, y.view([32, 8], [1, 32], 0))
"""
    program = run(columns(returned="z", more=more)).program
    assert parts(program) == {"p": "y + 0", "q": "y + 16"}
    assert program.arena_nbytes is as_index(8 * 32 * 4)


def test_memory_of_a_whole_is_used_again():
    more = """  define z: f32[8, 32] on cpu
    call out aten::mm.out(y, y.view([32, 32], [0, 1], 0))
  define u: f32[8, 32] on cpu
    for i0: 8, i1: 32 = add(y[i0, i1], z[i0, i1])
  define v: f32[8, 8] on cpu
    call out aten::mm.out(u, u.view([32, 8], [1, 32], 0))
"""
    program = run(columns(returned="v", more=more)).program
    assert parts(program) == {"p": "y + 0", "q": "y + 16"}
    assert any(isinstance(b.storage, SharedStorage) for b in program.buffers)


@pytest.mark.parametrize(("n", "m"), [(2, 3), (5, 8)])
def test_open_sizes(n, m):
    made = graph(f"""graph main(n >= 2, m >= 2)
  input a: f32[n, 24] on cpu
  input b: f32[24, 16] on cpu
  input c: f32[m, 24] on cpu
  define p: f32[n, 16] on cpu
    call out aten::mm.out(a, b)
  define q: f32[m, 16] on cpu
    call out aten::mm.out(c, b)
  define y: f32[n + m, 16] on cpu
    for i0: n + m, i1: 16 = {joined("i0", ("p[i0, i1]", 0, "n"), ("q[i0 - n, i1]", "n", "n + m"))}
  define u: f32[n, 16] on cpu
    call out aten::mm.out(a, b)
  define v: f32[n, 16] on cpu
    call out aten::mm.out(a, b)
  define z: f32[n, 32] on cpu
    for i0: n, i1: 32 = {joined("i1", ("u[i0, i1]", 0, 16), ("v[i0, i1 - 16]", 16, 32))}
  return y, z
""")
    program = plan(made).program
    assert parse_program(print_program(program)) == program
    a, b, c = torch.randn(n, 24), torch.randn(24, 16), torch.randn(m, 24)
    y, z = load_python(render_python(program))([a, b, c])
    torch.testing.assert_close(y, torch.cat([a, c]) @ b)
    torch.testing.assert_close(z, (a @ b).repeat(1, 2))
    assert parts(program) == {"p": "y + 0", "q": "y + n*16", "u": "z + 0", "v": "z + 16"}


@pytest.mark.parametrize(
    "made",
    [
        columns(right="p[i0, i1 - 16]"),
        columns(left="exp(p[i0, i1])", right="exp(q[i0, i1 - 16])"),
        columns(left="p[i0, 15 - i1]", right="q[i0, 31 - i1]"),
        columns(returned="y, p, q"),
        columns(
            returned="z",
            more="""  define z: f32[8] on cpu
    reduce sum for i0: 8 over r0: 32 = exp(y[i0, r0])
""",
        ),
    ],
    ids=["used twice", "not alone", "other places", "handed out too", "only loops read it"],
)
def test_others_are_copied(made):
    assert not parts(run(made).program)


@pytest.mark.parametrize("axis", ["i0", "i1"])
def test_rows_of_a_product_are_copied(axis):
    """The first 8 of them lie as in the whole, and there is no place for the others."""
    size = [8, 32] if axis == "i1" else [16, 16]
    if axis == "i1":
        value = joined("i1", ("p[i0, i1]", 0, 16), ("q[i0, i1 - 16]", 16, 32))
    else:
        value = joined("i0", ("q[i0, i1]", 0, 8), ("p[i0 - 8, i1]", 8, 16))
    made = graph(f"""graph main()
  input a: f32[12, 24] on cpu
  input b: f32[24, 16] on cpu
  input c: f32[8, 24] on cpu
  define p: f32[12, 16] on cpu
    call out aten::mm.out(a, b)
  define q: f32[8, 16] on cpu
    call out aten::mm.out(c, b)
  define y: f32{size} on cpu
    for i0: {size[0]}, i1: {size[1]} = {value}
  return y
""")
    assert set(parts(run(made).program)) == {"q", "y_part"}


@pytest.mark.parametrize("left", ["a", "b"])
def test_calls_that_are_no_such_concatenation_are_made(left):
    made = graph(f"""graph main()
  input a: f32[8, 16] on cpu
  define b: f32[8, 16] on cpu
    for i0: 8, i1: 16 = exp(a[i0, i1])
  define c: f32[8, 16] on cpu
    for i0: 8, i1: 16 = sin(a[i0, i1])
  define y: f32[8, 32] on cpu
    call out aten::cat.out([{left}, c], 1)
  return y
""")
    program = run(made).program
    assert not parts(program)
    assert sum(isinstance(step, CallExtern) for step in program.steps) == 1


def test_what_is_handed_out_is_copied_and_its_neighbour_is_not():
    assert parts(run(columns(returned="y, p")).program) == {"q": "y + 16", "y_part": "y + 0"}


def test_what_is_written_back_is_copied():
    made = columns()
    (y,) = made.definitions[-1].buffers
    target = replace(y, name="d")
    made = replace(
        made, inputs=(*made.inputs, target), mutations=(("d", TensorRef("y")),), outputs=()
    )
    program = plan(made).program
    assert not parts(program)
    given = [torch.randn(8, 24), torch.randn(24, 16), torch.randn(8, 16), torch.zeros(8, 32)]
    load_python(render_python(program))(given)
    a, b, c, d = given
    torch.testing.assert_close(d, torch.cat([a @ b, c + a @ b], 1))


def awkward(left: int, right: int) -> Graph:
    value = joined("i1", ("p[i0, i1]", 0, left), (f"q[i0, i1 - {left}]", left, left + right))
    return graph(f"""graph main()
  input a: f32[80, 24] on cpu
  input b: f32[24, {left}] on cpu
  input c: f32[24, {right}] on cpu
  define p: f32[80, {left}] on cpu
    call out aten::mm.out(a, b)
  define q: f32[80, {right}] on cpu
    call out aten::mm.out(a, c)
  define y: f32[80, {left + right}] on cpu
    for i0: 80, i1: {left + right} = {value}
  return y
""")


def test_rows_that_would_begin_awkwardly_are_copied():
    assert set(parts(run(awkward(304, 256)).program)) == {"p", "q"}
    schedule = run(awkward(304, 257))
    assert not parts(schedule.program)
    assert "its rows would begin at no multiple of 32 bytes" in schedule.explain()
    assert set(parts(run(awkward(33, 31)).program)) == {"p", "q"}  # narrow ones do not care


@pytest.mark.parametrize(("inner", "joined_parts"), [(32, {"p", "q"}), (33, {"q", "y_part"})])
def test_a_whole_is_not_there_when_more_memory_is_taken(inner, joined_parts):
    value = joined("i1", ("p[i0, i1]", 0, 16), ("q[i0, i1 - 16]", 16, 32))
    made = graph(f"""graph main()
  input a: f32[8, 24] on cpu
  input b: f32[24, 16] on cpu
  input c: f32[24, {inner}] on cpu
  input d: f32[{inner}, 16] on cpu
  define p: f32[8, 16] on cpu
    call out aten::mm.out(a, b)
  define t: f32[8, {inner}] on cpu
    call out aten::mm.out(a, c)
  define q: f32[8, 16] on cpu
    call out aten::mm.out(t, d)
  define y: f32[8, 32] on cpu
    for i0: 8, i1: 32 = {value}
  return y
""")
    assert set(parts(run(made).program)) == joined_parts


def test_what_is_joined_much_later_is_copied():
    chain = "".join(
        f"  define t{n}: f32[8, 8] on cpu\n    for i0: 8, i1: 8 = exp({previous}[i0, i1])\n"
        for n, previous in enumerate(["a", *(f"t{n}" for n in range(299))])
    )
    value = joined("i1", ("p[i0, i1]", 0, 8), ("t299[i0, i1 - 8]", 8, 16))
    made = graph(f"""graph main()
  input a: f32[8, 8] on cpu
  define p: f32[8, 8] on cpu
    call out aten::mm.out(a, a)
{chain}  define y: f32[8, 16] on cpu
    for i0: 8, i1: 16 = {value}
  return y
""")
    schedule = plan(made)
    assert not parts(schedule.program)
    assert "y comes much later" in schedule.explain()


def _storage(program: Program, name: str, **changes: object) -> Program:
    buffers = tuple(replace(b, **changes) if b.name == name else b for b in program.buffers)
    return replace(program, buffers=buffers)


def _without(program: Program, place: int) -> Program:
    return replace(program, steps=program.steps[:place] + program.steps[place + 1 :])


def _first(program: Program, kind: type, nth: int = 0) -> int:
    return [n for n, step in enumerate(program.steps) if isinstance(step, kind)][nth]


def _at(offset: int, whole: str = "y") -> PartStorage:
    return PartStorage(whole, as_index(offset))


def _whole_later(program: Program) -> Program:
    steps = list(program.steps)
    steps.insert(1, steps.pop(0))
    return replace(program, steps=tuple(steps))


def _reading_early(program: Program) -> Program:
    """A call that reads the whole after its first part."""
    call = program.steps[_first(program, CallExtern)]
    assert isinstance(call, CallExtern)
    early = replace(call, op="aten::sum", overload="", args=(TensorRef("y"), None), results=(None,))
    steps = list(program.steps)
    steps.insert(_first(program, CallExtern, 1), replace(early, out_variant=False))
    return replace(program, steps=tuple(steps))


BROKEN: dict[str, tuple[Callable[[Program], Program], str]] = {
    "overlapping": (lambda p: _storage(p, "q", storage=_at(8)), "all of it, each once"),
    "the same place": (lambda p: _storage(p, "q", storage=_at(0)), "all of it, each once"),
    "beyond": (lambda p: _storage(p, "q", storage=_at(17)), "all of it, each once"),
    "a gap": (
        lambda p: _storage(p, "q", storage=_at(16), layout=Layout.of([8, 8], [32, 1])),
        "all of it, each once",
    ),
    "no band": (
        lambda p: _storage(p, "q", layout=Layout.of([8, 16], [16, 1])),
        "all of it, each once",
    ),
    "other strides": (
        lambda p: _storage(p, "q", layout=Layout.of([8, 16], [1, 8])),
        "all of it, each once",
    ),
    "of an input": (lambda p: _storage(p, "q", storage=_at(16, "a")), "has memory of its own"),
    "of a part": (lambda p: _storage(p, "q", storage=_at(0, "p")), "has memory of its own"),
    "of nothing": (lambda p: _storage(p, "q", storage=_at(16, "w")), "there is a buffer w"),
    "a whole with gaps": (
        lambda p: _storage(p, "y", layout=Layout.of([8, 32], [40, 1])),
        "lies densely",
    ),
    "no whole": (lambda p: _without(p, 0), "which it is part of, is alive"),
    "a whole that comes later": (_whole_later, "which it is part of, is alive"),
    "a part that is not written": (
        lambda p: _without(p, _first(p, CallExtern)),
        "computed before it is read",
    ),
    "read before all is written": (_reading_early, "y is computed before it is read"),
    "returned": (
        lambda p: replace(
            _without(_without(p, _first(p, Free, 1)), _first(p, Free)),
            steps=(*p.steps[: _first(p, Free)], Return((TensorRef("p"),))),
        ),
        "is not part of other memory",
    ),
    "shared": (
        lambda p: replace(
            replace(
                p,
                buffers=(*p.buffers, replace(p.buffers[-1], name="s", storage=SharedStorage("q"))),
            ),
            steps=(*p.steps[: _first(p, Free)], Allocate("s"), *p.steps[_first(p, Free) :]),
        ),
        "is not part of another",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_programs(name):
    program = plan(columns()).program
    verify_program(program)
    breaking, message = BROKEN[name]
    with pytest.raises(ProgramError, match=message):
        verify_program(breaking(program))


def test_writing_over_a_whole_loses_its_parts():
    program = plan(columns()).program
    call = program.steps[_first(program, CallExtern)]
    assert isinstance(call, CallExtern)
    over = replace(call, args=(TensorRef("c"), TensorRef("b", Layout.of([16, 32], [1, 0]))))
    steps = list(program.steps)
    place = _first(program, Free)
    steps.insert(place, replace(over, results=("y",)))
    verify_program(replace(program, steps=tuple(steps)))
    reads = replace(call, op="aten::sum", overload="", args=(TensorRef("p"), None), results=(None,))
    steps.insert(place + 1, replace(reads, out_variant=False))
    with pytest.raises(ProgramError, match="p is computed before it is read"):
        verify_program(replace(program, steps=tuple(steps)))
