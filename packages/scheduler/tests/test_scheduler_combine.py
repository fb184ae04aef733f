"""Launches that may run at the same time and whose kernels are equal become one launch."""

from dataclasses import replace

import pytest
import torch

from plait_ir_lowering import (
    Buffer,
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
    Sym,
    TensorRef,
    Var,
    as_index,
    parse_graph,
)
from plait_scheduler import (
    CombinedKernel,
    CopyBack,
    DecisionKind,
    Kernel,
    Launch,
    ProgramError,
    SchedulerOptions,
    first_wrong_decision,
    kernel_work,
    load_python,
    members_of,
    parse_kernel,
    parse_program,
    plan,
    print_kernel,
    print_program,
    render_python,
    separated,
    verify_kernel,
    verify_program,
)

GPU = SchedulerOptions.for_gpu()
APART = replace(GPU, combine_launches=False)
CPU = Device("cpu")


def tensor(name, size, dtype=DType.f32):
    return Buffer(name, dtype, CPU, Layout.of([size] if isinstance(size, int | Sym) else size))


def doubled(source, name, size, dtype=DType.f32, by=2.0, turned=False):
    """`name` = `by` * `source`, element by element; of a transposed `source` if `turned`."""
    ranges = tuple(Var(f"i{n}", extent) for n, extent in enumerate(size))
    places = [var.expr for var in ranges]
    read = Load(source, places[::-1] if turned else places, dtype)
    value = Op("mul", [read, Const(by, dtype)])
    return Definition((tensor(name, size, dtype),), Pointwise(ranges, value))


def results(sizes, dtypes=None, bys=None):
    """A graph that hands out y0, y1, ... = 2 * x0, 2 * x1, ... of these sizes."""
    dtypes, bys = dtypes or [DType.f32] * len(sizes), bys or [2.0] * len(sizes)
    sizes = [size if isinstance(size, tuple) else (size,) for size in sizes]
    inputs = [tensor(f"x{n}", size, dtypes[n]) for n, size in enumerate(sizes)]
    made = [doubled(f"x{n}", f"y{n}", size, dtypes[n], bys[n]) for n, size in enumerate(sizes)]
    outputs = tuple(TensorRef(f"y{n}") for n in range(len(sizes)))
    return Graph("results", tuple(inputs), tuple(made), outputs)


def launches(program):
    return [step for step in program.steps if isinstance(step, Launch)]


def combined(program):
    return [kernel for kernel in program.kernels if isinstance(kernel, CombinedKernel)]


def check(graph, *inputs, options=GPU):
    """The program, whose text, members and results are right, in place or not."""
    schedule = plan(graph, options=options)
    program = schedule.program
    text = print_program(program)
    assert parse_program(text) == program
    for kernel in program.kernels:
        assert parse_kernel(print_kernel(kernel)) == kernel
    apart = separated(program)
    verify_program(apart)
    assert not combined(apart)
    plain = plan(graph, options=replace(options, combine_launches=False)).program
    assert not combined(plain)
    expected = None
    for each in (plain, program, apart):
        given = [x.clone() for x in inputs]
        found = (*load_python(render_python(each))(given), *given)
        expected = expected or found
        for one, two in zip(found, expected, strict=True):
            assert torch.equal(one, two), render_python(each)
    return schedule


def values(*sizes, dtype=torch.float32):
    return [torch.randn(size).to(dtype) for size in sizes]


def test_kernels_of_other_sizes_are_one_launch():
    program = check(results([8, 4, 400, 8]), *values(8, 4, 400, 8)).program
    (launch,) = launches(program)
    assert launch.buffers == ("x0", "y0", "x1", "y1", "x2", "y2", "x3", "y3")
    assert launch.origin == sum((d.origin for d in results([8]).definitions), launch.origin)
    (kernel,) = combined(program)
    assert [str(*sizes) for sizes in kernel.members] == ["8", "4", "400", "8"]
    assert [param.name for param in kernel.params[:4]] == ["p0_0", "p1_0", "p0_1", "p1_1"]
    assert [str(param.layout.numel) for param in kernel.params[::2]] == ["8", "4", "400", "8"]
    (var,) = kernel.body.outer
    assert (var.extent.terms[0][0][0].lower, var.extent.terms[0][0][0].upper) == (4, 400)


def test_members_of_one_size_keep_it_as_a_constant():
    (kernel,) = combined(check(results([12, 12]), *values(12, 12)).program)
    assert kernel.members == ((), ())
    assert kernel.body.symbols == ()
    assert str(kernel.body.outer[0].extent) == "12"


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        ([4], 1),
        ([8, 4], 1),
        ([8, 6, 4, 10], 2),  # whole vectors of 16 bytes, and others
        ([0, 8, 4], 1),  # nothing is launched for what is empty
        ([1, 1, 1], 1),
        ([1, 4, 1, 4], 2),  # one element has no loop
        ([(3, 5), (4, 4), (16,)], 2),  # loops are merged
    ],
)
def test_sizes(sizes, count):
    program = check(results(sizes), *values(*sizes)).program
    assert len(launches(program)) == count


@pytest.mark.parametrize("number", [2, 6, 7, 13, 25])
def test_large_groups_are_several_launches_of_about_as_many(number):
    sizes = [4 * (1 + n % 5) for n in range(number)]
    options = replace(GPU, max_members=6)
    program = check(results(sizes), *values(*sizes), options=options).program
    counts = [len(launch.buffers) // 2 for launch in launches(program)]
    assert sum(counts) == number
    assert len(counts) == -(-number // 6)
    assert max(counts) - min(counts) <= 1
    assert [launch.together for launch in launches(program)] == [n > 0 for n in range(len(counts))]


def test_arguments_of_a_launch_are_limited():
    program = check(results([4] * 9), *values(*[4] * 9), options=replace(GPU, max_arguments=8))
    assert [len(launch.buffers) for launch in launches(program.program)] == [6, 6, 6]
    few = check(results([4] * 9), *values(*[4] * 9), options=replace(GPU, max_arguments=3))
    assert len(launches(few.program)) == 9


def test_other_types_and_constants_are_other_kernels():
    dtypes = [DType.f32, DType.f64] * 2
    graph = results([4] * 4, dtypes)
    given = [torch.randn(4).double() if d is DType.f64 else torch.randn(4) for d in dtypes]
    assert len(launches(check(graph, *given).program)) == 2
    assert (
        len(launches(check(results([4] * 4, bys=[1.0, 3.0] * 2), *values(*[4] * 4)).program)) == 2
    )


def test_transposed_members_are_combined_where_their_shape_is_the_same():
    sizes = [(20, 30), (20, 30), (30, 20)]
    made = [doubled(f"x{n}", f"y{n}", size, turned=True) for n, size in enumerate(sizes)]
    inputs = [tensor(f"x{n}", size[::-1]) for n, size in enumerate(sizes)]
    graph = Graph("turned", tuple(inputs), tuple(made), tuple(TensorRef(f"y{n}") for n in range(3)))
    program = check(graph, *values(*[size[::-1] for size in sizes])).program
    assert [len(launch.buffers) for launch in launches(program)] == [4, 2]


def test_open_sizes():
    s = Sym("s", 1, 1000)
    graph = results([4 * s.expr, s.expr, 12, 4 * s.expr + 8])
    for size in (1, 5, 17):
        schedule = check(graph, *values(4 * size, size, 12, 4 * size + 8))
    program = schedule.program
    assert sorted(len(launch.buffers) for launch in launches(program)) == [2, 6]
    assert "s" in str(combined(program)[0].members)


def test_large_kernels_stay_alone():
    options = replace(GPU, most_combined_points=100)
    program = check(results([100, 104, 4]), *values(100, 104, 4), options=options).program
    assert sorted(len(launch.buffers) for launch in launches(program)) == [2, 4]


def in_place(sizes):
    inputs = tuple(tensor(f"x{n}", size) for n, size in enumerate(sizes))
    made = tuple(doubled(f"x{n}", f"y{n}", (size,)) for n, size in enumerate(sizes))
    mutations = tuple((f"x{n}", TensorRef(f"y{n}")) for n in range(len(sizes)))
    return Graph("updates", inputs, made, (), mutations)


def test_inputs_are_updated_in_place_by_one_launch():
    program = check(in_place([8, 4, 12]), *values(8, 4, 12)).program
    (launch,) = launches(program)
    assert launch.buffers == ("y0", "y1", "y2")
    assert not any(isinstance(step, CopyBack) for step in program.steps)
    assert {str(param.access.value) for param in combined(program)[0].params} == {"readwrite"}


def test_an_input_that_another_updates_is_read_before():
    """The kernels are equal, and would do otherwise side by side, or in another order."""
    definitions = (doubled("x0", "y0", (8,)), doubled("x0", "y1", (8,), by=3.0))
    inputs, mutations = (tensor("x0", 8),), (("x0", TensorRef("y0")),)
    graph = Graph("both", inputs, definitions, (TensorRef("y1"),), mutations)
    options = replace(GPU, fuse_pointwise=False, fuse_siblings=False)
    check(graph, *values(8), options=options)


def call(source, name, size):
    tensors = (TensorRef(source),)
    return Definition((tensor(name, size),), ExternCall("aten::relu", "", tensors, False))


def test_what_nothing_reads_waits_for_others_of_its_kind():
    """As counters of layers between the calls of a model do."""
    inputs = (tensor("a", 8), *(tensor(f"c{n}", 4) for n in range(3)))
    definitions = [
        *(call("a", "b0", 8), doubled("c0", "d0", (4,))),
        *(call("b0", "b1", 8), doubled("c1", "d1", (4,))),
        *(call("b1", "b2", 8), doubled("c2", "d2", (4,))),
    ]
    outputs = tuple(TensorRef(name) for name in ("b2", "d0", "d1", "d2"))
    graph = Graph("counters", inputs, tuple(definitions), outputs)
    program = check(graph, *values(8, 4, 4, 4)).program
    (launch,) = launches(program)
    assert len(launch.buffers) == 6


def made_by_calls(count):
    """Each result is twice a temporary of 400 bytes, which a call makes."""
    inputs = tuple(tensor(f"a{n}", 100) for n in range(count))
    definitions = [
        definition
        for n in range(count)
        for definition in (call(f"a{n}", f"b{n}", 100), doubled(f"b{n}", f"y{n}", (100,)))
    ]
    outputs = tuple(TensorRef(f"y{n}") for n in range(count))
    return Graph("gradients", inputs, tuple(definitions), outputs)


@pytest.mark.parametrize(("most", "count"), [(10_000, 1), (1000, 2), (100, 6)])
def test_temporaries_that_wait_hold_back_little_memory(most, count):
    options = replace(GPU, most_waiting_bytes=most)
    program = check(made_by_calls(6), *values(*[100] * 6), options=options).program
    assert len(launches(program)) == count


def test_numbers_that_others_need_come_first():
    """As optimizers compute of a counter for each parameter."""
    inputs = tuple(
        tensor(f"{kind}{n}", size) for n in range(4) for kind, size in (("c", 1), ("x", 8))
    )
    definitions = []
    for n in range(4):
        var = Var("i0", 8)
        scale = Load(f"s{n}", [Var("i1", 1).expr], DType.f32)
        value = Op("mul", [Load(f"x{n}", [var.expr], DType.f32), scale])
        root = Op("sqrt", [Load(f"c{n}", [Var("i1", 1).expr], DType.f32)])
        made = Definition((tensor(f"s{n}", 1),), Pointwise((Var("i1", 1),), root))
        definitions += [made, Definition((tensor(f"y{n}", 8),), Pointwise((var,), value))]
    outputs = tuple(TensorRef(f"y{n}") for n in range(4))
    graph = Graph("scaled", inputs, tuple(definitions), outputs)
    options = replace(GPU, inline_producers=False, fuse_pointwise=False)
    given = [x.abs() for x in values(*[1, 8] * 4)]
    program = check(graph, *given, options=options).program
    assert [len(launch.buffers) for launch in launches(program)] == [8, 12]


def counted(sizes, read_by_call=False):
    """A step of an optimizer that counts it for each parameter, in place."""
    lines = ["graph step()"]
    for n, size in enumerate(sizes):
        lines += [f"  input c{n}: f32[] on cpu", f"  input x{n}: f32[{size}] on cpu"]
    for n, size in enumerate(sizes):
        lines += [
            *(f"  define n{n}: f32[] on cpu", f"    for  = add(c{n}[()], f32(1.0))"),
            *(f"  define r{n}: f32[] on cpu", f"    for  = reciprocal(n{n}[()])"),
            f"  define d{n}: f32[{size}] on cpu",
            f"    for i0: {size} = mul(x{n}[i0], f32(0.5))",
            f"  define y{n}: f32[{size}] on cpu",
            f"    for i0: {size} = sub(x{n}[i0], mul(d{n}[i0], r{n}[()]))",
        ]
        if read_by_call and n == 1:
            lines += ["  define z: f32[] on cpu", "    call new aten::relu(n1)"]
    for n in range(len(sizes)):
        lines += [f"  write c{n} = n{n}", f"  write x{n} = y{n}"]
    return parse_graph("\n".join([*lines, "  return z" if read_by_call else "  return"]))


def counts(sizes):
    return [x.abs() for size in sizes for x in (torch.randn(()), torch.randn(size))]


def test_counts_that_are_written_back_come_just_before_what_reads_them():
    sizes = [400, 404, 408, 412]
    program = check(counted(sizes), *counts(sizes)).program
    assert [len(launch.buffers) for launch in launches(program)] == [8, 8]
    assert not any(isinstance(step, CopyBack) for step in program.steps)


def test_counts_that_a_call_reads_come_before_it():
    sizes = [8, 4, 12, 400]
    program = check(counted(sizes, read_by_call=True), *counts(sizes)).program
    assert len(launches(program)) < len(sizes) * 2


def test_decisions_are_told_and_can_be_bisected():
    graph = results([8, 4, 400])
    schedule = plan(graph, options=GPU)
    (decision,) = [d for d in schedule.decisions if d.kind is DecisionKind.COMBINE]
    assert decision.accepted
    assert str(decision) == (
        "combining of launches of y0 with 2 others: done because their kernels are equal but for "
        "how many points they have"
    )
    found = first_wrong_decision(graph, lambda program: not combined(program), options=GPU)
    assert found == decision
    assert len(launches(plan(graph, options=replace(GPU, fuel=0)).program)) == 3


def test_cpus_combine_nothing():
    assert not combined(plan(results([8, 4, 400])).program)
    assert not SchedulerOptions().combine_launches


def test_work_is_that_of_all_members():
    (kernel,) = combined(plan(results([8, 4, 400]), options=GPU).program)
    (alone, *_) = plan(results([412]), options=APART).program.kernels
    assert kernel_work(kernel) == kernel_work(alone)
    assert len(members_of(kernel)) == 3
    assert all(isinstance(member, Kernel) for member in members_of(kernel))


TEXT = """\
combined twice of (4), (s*4) sizes(s in 1..8)
  kernel (p0: readwrite f32[points]) sizes(points in 1..32)
    for i0: points
      outer store p0[i0] = mul(p0[i0], f32(2.0))
"""
BROKEN = {
    "has members": {"members": ()},
    "a value for each size": {"members": ((as_index(4),), ())},
    "is of sizes that are passed": {"symbols": ()},
    "is a value of points": {"members": ((as_index(40),),)},
    "has no name": {"body": {"name": "own"}},
    "is pointwise": {"body": {"outer": (), "inner": (Var("i0", Sym("points", 1, 32).expr),)}},
    "is a variable of the domain": {"body": {"outer": (Var("i0", 4),)}},
}
"""What is not true any more of a kernel, parts of which are others."""


def test_text():
    kernel = parse_kernel(TEXT)
    verify_kernel(kernel)
    assert print_kernel(kernel) + "\n" == TEXT


@pytest.mark.parametrize("rule", [*BROKEN])
def test_unsound_members_are_found(rule):
    kernel, parts = parse_kernel(TEXT), dict(BROKEN[rule])
    if "body" in parts:
        parts["body"] = replace(kernel.body, **parts["body"])
    with pytest.raises(ProgramError, match=rule):
        verify_kernel(replace(kernel, **parts))


PROGRAM = """\
program both()
  inputs x, z
  arena 0
  buffer x: f32[4] on cpu = input 0
  buffer z: f32[8] on cpu = input 1
  buffer y: f32[4] on cpu = shared x
  buffer w: f32[8] on cpu = output
  combined of_both of (4), (8)
    kernel (p0: read f32[points], p1: write f32[points]) sizes(points in 4..8)
      for i0: points
        outer store p1[i0] = p0[i0]
  steps
    allocate y
    allocate w
    launch of_both({first}, {second}, z, w)
    free y
    return w
"""


def test_members_touch_nothing_that_another_writes():
    text = PROGRAM.replace("{first}, {second}", "x, y")
    with pytest.raises(ProgramError):  # in place what is only written
        verify_program(parse_program(text.replace("z, w)", "z, y)")))
    good = parse_program(text)
    verify_program(good)
    other = (
        text.replace("f32[8]", "f32[4]").replace("(4), (8)", "(4), (4)").replace("z, w)", "x, w)")
    )
    with pytest.raises(ProgramError, match="which one writes"):
        verify_program(parse_program(other))
    one = other.replace("x, w)", "z, y)")
    with pytest.raises(ProgramError, match="given once"):
        verify_program(parse_program(one))
