"""The Python host program: values, indirect reads, external calls, other renderers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from scheduler_graphs import CPU, F32, Builder, transformer
from torch.fx.experimental.proxy_tensor import make_fx

from plait_ir_lowering import (
    OPS,
    Buffer,
    CheckedIndex,
    Const,
    Definition,
    Device,
    DType,
    ExternCall,
    ExternList,
    Graph,
    IndexValue,
    Layout,
    Load,
    Masked,
    Op,
    Pointwise,
    Reduction,
    ReductionKind,
    Sym,
    TensorRef,
    TypeRule,
    Value,
    Var,
    as_index,
    lower,
)
from plait_scheduler import (
    Kernel,
    RenderedKernel,
    SchedulerOptions,
    load_python,
    parse_program,
    plan,
    print_program,
    render_python,
    schedule,
    torch_kernel,
)
from plait_scheduler.host import combine
from plait_utils import Profile
from plait_utils.draws import draws_before

I64 = DType.i64


def _run(graph: Graph, *inputs: torch.Tensor) -> tuple:
    return load_python(render_python(schedule(graph)))(inputs)


def _embedding(rows: int, checked: bool = True) -> Graph:
    i0, i1 = Var("i0", 5), Var("i1", 4)
    place: Value = Load("ids", [i0.expr], I64)
    if checked:
        place = CheckedIndex(place, as_index(rows))
    value = Op("mul", [Load("table", [place, i1.expr], F32), Const(2.0, F32)])
    out = Buffer("out", F32, CPU, Layout.of([5, 4]))
    return Graph(
        "embed",
        (Buffer("table", F32, CPU, Layout.of([rows, 4])), Buffer("ids", I64, CPU, Layout.of([5]))),
        (Definition((out,), Pointwise((i0, i1), value)),),
        (TensorRef("out"),),
    )


def test_indirect_reads() -> None:
    table, ids = torch.randn(7, 4), torch.tensor([0, 6, -1, -7, 3])
    (got,) = _run(_embedding(7), table, ids)
    assert torch.equal(got, table[ids] * 2)


@pytest.mark.parametrize("bad", [7, -8])
def test_an_index_out_of_bounds_raises(bad: int) -> None:
    with pytest.raises(IndexError, match=f"index {bad} is out of bounds"):
        _run(_embedding(7), torch.randn(7, 4), torch.tensor([0, 1, bad, 2, 3]))


def test_indices_are_checked_only_where_the_mask_holds() -> None:
    i0 = Var("i0", 4)
    mask = Op("lt", [IndexValue(i0.expr), Const(2, I64)])
    row = CheckedIndex(Load("ids", [i0.expr], I64), as_index(3))
    value = Masked(mask, Load("x", [row], F32), Const(-1.0, F32))
    out = Buffer("out", F32, CPU, Layout.of([4]))
    graph = Graph(
        "g",
        (Buffer("x", F32, CPU, Layout.of([3])), Buffer("ids", I64, CPU, Layout.of([4]))),
        (Definition((out,), Pointwise((i0,), value)),),
        (TensorRef("out"),),
    )
    x = torch.randn(3)
    (got,) = _run(graph, x, torch.tensor([2, 0, 99, -99]))
    assert torch.equal(got, torch.tensor([x[2], x[0], -1.0, -1.0]))
    with pytest.raises(IndexError):
        _run(graph, x, torch.tensor([2, 99, 0, 0]))


def test_padding_and_concatenation_read_within_bounds() -> None:
    i0 = Var("i0", 9)
    left = Op("lt", [IndexValue(i0.expr), Const(4, I64)])
    value = Masked(left, Load("x", [i0.expr], F32), Load("y", [i0.expr - 4], F32))
    # the second read is guarded too, by the opposite condition
    value = Masked(left, Load("x", [i0.expr], F32), Const(0.0, F32))
    right = Op("ge", [IndexValue(i0.expr), Const(4, I64)])
    value = Op("add", [value, Masked(right, Load("y", [i0.expr - 4], F32), Const(0.0, F32))])
    out = Buffer("out", F32, CPU, Layout.of([9]))
    graph = Graph(
        "cat",
        tuple(Buffer(n, F32, CPU, Layout.of([s])) for n, s in (("x", 4), ("y", 5))),
        (Definition((out,), Pointwise((i0,), value)),),
        (TensorRef("out"),),
    )
    x, y = torch.randn(4), torch.randn(5)
    assert torch.equal(_run(graph, x, y)[0], torch.cat([x, y]))


def test_inputs_may_be_strided_and_have_an_offset() -> None:
    base = torch.randn(10, 12)
    b = Builder()
    x = b.input(base[2:8, 1:9:2])
    (got,) = _run(b.graph(b.softmax(x)), base[2:8, 1:9:2])
    torch.testing.assert_close(got, x.value.softmax(-1))


def _sample(dtype: DType) -> torch.Tensor:
    if dtype is DType.bool_:
        return torch.tensor([True, False, True, False])
    if dtype is DType.i64:
        return torch.tensor([3, -5, 7, 2])
    if dtype is DType.c64:
        return torch.tensor([0.5 - 1j, -1.25 + 2j, 0.75j, 2])
    return torch.tensor([0.5, -1.25, 0.75, 2.0])


@pytest.mark.parametrize("name", sorted(OPS))
def test_every_operation_runs(name: str) -> None:
    spec = OPS[name]
    dtypes = {
        TypeRule.BOOL: [DType.bool_] * spec.arity,
        **dict.fromkeys((TypeRule.INTEGER, TypeRule.LONG), [I64] * spec.arity),
        TypeRule.SELECT: [DType.bool_, F32, F32],
        TypeRule.PART: [DType.c64],
    }.get(spec.rule, [F32] * spec.arity)
    i0 = Var("i0", 4)
    loads = [Load(f"x{n}", [i0.expr], dtype) for n, dtype in enumerate(dtypes)]
    cast = {"to": I64, "bitcast": DType.i32}.get(name)
    value = Op(name, loads, cast)
    inputs = [_sample(dtype) for dtype in dtypes]
    if name in ("lshift", "rshift"):
        inputs[1] = torch.tensor([1, 2, 0, 3])
    out = Buffer("out", value.dtype, CPU, Layout.of([4]))
    graph = Graph(
        "op",
        tuple(Buffer(f"x{n}", d, CPU, Layout.of([4])) for n, d in enumerate(dtypes)),
        (Definition((out,), Pointwise((i0,), value)),),
        (TensorRef("out"),),
    )
    (got,) = _run(graph, *inputs)
    if hasattr(torch, name) and name != "to":
        expected = getattr(torch, name)(*inputs)
        torch.testing.assert_close(got, expected, equal_nan=True)


@pytest.mark.parametrize("kind", list(ReductionKind))
def test_every_reduction_runs(kind: ReductionKind) -> None:
    logical = kind in (ReductionKind.ANY, ReductionKind.ALL)
    x = torch.randn(3, 4, 5).gt(0) if logical else torch.randn(3, 4, 5)
    dtype = DType.bool_ if logical else F32
    i0, r0, r1 = Var("i0", 4), Var("r0", 3), Var("r1", 5)
    body = Reduction((i0,), (r0, r1), kind, Load("x", [r0.expr, i0.expr, r1.expr], dtype))
    out = Buffer("out", kind.result_dtype(dtype), CPU, Layout.of([4]))
    graph = Graph(
        "r",
        (Buffer("x", dtype, CPU, Layout.of([3, 4, 5])),),
        (Definition((out,), body),),
        (TensorRef("out"),),
    )
    rows = x.permute(1, 0, 2).reshape(4, 15)
    names = {"max": "amax", "min": "amin"}
    expected = getattr(rows, names.get(kind.value, kind.value))(-1)
    torch.testing.assert_close(_run(graph, x)[0], expected)


def test_external_calls_with_lists_keywords_and_several_results() -> None:
    x = Buffer("x", F32, CPU, Layout.of([4, 6]))
    both = [Buffer(n, t, CPU, Layout.of([4])) for n, t in (("top", F32), ("where", I64))]
    joined = Buffer("joined", F32, CPU, Layout.of([8, 6]))
    ones = Buffer("ones", DType.f64, CPU, Layout.of([2]))
    pair = ExternList((TensorRef("x"), TensorRef("x")))
    graph = Graph(
        "calls",
        (x,),
        (
            Definition(tuple(both), ExternCall("aten::max", "dim", (TensorRef("x"), 1, False))),
            Definition((joined,), ExternCall("aten::cat", "out", (pair, 0), True)),
            Definition(
                (ones,),
                ExternCall(
                    "aten::ones",
                    "",
                    (ExternList((2,)), DType.f64, "strided", Device("cpu"), False),
                ),
            ),
        ),
        (TensorRef("where"), TensorRef("joined"), TensorRef("ones")),
    )
    value = torch.randn(4, 6)
    where, together, made = _run(graph, value)
    assert torch.equal(where, value.argmax(1))
    assert torch.equal(together, torch.cat([value, value]))
    assert made.dtype is torch.float64
    assert "torch.ops.aten.cat.out([x, x], 0, out=joined)" in render_python(schedule(graph))


def test_a_result_with_other_strides_is_copied_into_its_layout() -> None:
    x = Buffer("x", F32, CPU, Layout.of([4, 6]))
    turned = Buffer("turned", F32, CPU, Layout.of([4, 6], [1, 4]))
    call = ExternCall("aten::relu", "", (TensorRef("x"),))
    graph = Graph("g", (x,), (Definition((turned,), call),), (TensorRef("turned"),))
    value = torch.randn(4, 6)
    (got,) = _run(graph, value)
    assert got.stride() == (1, 4)
    assert torch.equal(got, value.relu())


def test_sizes_known_at_run_time() -> None:
    s = Sym("s0", 2).expr
    i0, r0 = Var("i0", s), Var("r0", 6)
    x = Buffer("x", F32, CPU, Layout.of([s, 6]))
    total = Buffer("total", F32, CPU, Layout.of([s]))
    out = Buffer("out", F32, CPU, Layout.of([s, 6]))
    i1 = Var("i1", 6)
    scaled = Op("div", [Load("x", [i0.expr, i1.expr], F32), Load("total", [i0.expr], F32)])
    graph = Graph(
        "dynamic",
        (x,),
        (
            Definition(
                (total,),
                Reduction((i0,), (r0,), ReductionKind.SUM, Load("x", [i0.expr, r0.expr], F32)),
            ),
            Definition((out,), Pointwise((i0, i1), scaled)),
        ),
        (TensorRef("out"), s),
    )
    program = schedule(graph)
    assert len(program.kernels) == 1
    run = load_python(render_python(program))
    for rows in (2, 5):
        value = torch.rand(rows, 6)
        got, size = run([value])
        torch.testing.assert_close(got, value / value.sum(1, keepdim=True))
        assert size == rows


def test_inputs_that_require_gradients_and_a_profile() -> None:
    b = Builder()
    x = b.input(torch.randn(4, 4))
    y = b.unary("exp", b.mm(x, x))
    profile = Profile()
    program = schedule(b.graph(y), profile=profile)
    given = b.given[0].clone().requires_grad_()
    (got,) = load_python(render_python(program))([given])
    torch.testing.assert_close(got, y.value)
    assert "schedule" in profile.seconds()
    assert profile.counters()["launches"] == 1


def test_another_kernel_renderer_can_be_used() -> None:
    def traced(kernel: Kernel) -> RenderedKernel:
        plain = torch_kernel(kernel)
        wrapper = f"def call_{kernel.name}(*args):\n    calls.append({kernel.name!r})\n"
        source = f"{plain.source}\n\n{wrapper}    {plain.call}(*args)\n"
        return RenderedKernel(source, f"call_{kernel.name}", ("calls = []",))

    b = Builder()
    y = b.unary("exp", b.input(torch.randn(4)))
    source = render_python(schedule(b.graph(y)), traced)
    assert source.count("calls = []") == 1
    torch.testing.assert_close(load_python(source)(b.given)[0], y.value)


def test_deep_values_need_no_deep_recursion() -> None:
    b = Builder()
    y = b.input(torch.rand(4))
    for _ in range(400):
        y = b.binary("add", y, 0.5)
    program = schedule(b.graph(y), options=SchedulerOptions(max_operations=2000))
    assert len(program.kernels) == 1
    assert parse_program(print_program(program)) == program
    torch.testing.assert_close(load_python(render_python(program))(b.given)[0], y.value)


def test_buffers_may_have_any_names() -> None:
    b = Builder()
    x = b.input(torch.randn(3), "torch")
    y = b.input(torch.randn(3), "lambda")
    z = b.input(torch.randn(3), "L['self'].w")
    total = b.binary("add", b.binary("add", x, y), z)
    (got,) = _run(b.graph(total), *b.given)
    torch.testing.assert_close(got, total.value)


def test_the_source_tells_where_each_step_comes_from() -> None:
    b = Builder()
    y = b.unary("exp", b.input(torch.randn(3)))
    assert "# node_buf0 | line of buf0" in render_python(schedule(b.graph(y)))


def _paths() -> str:
    """Where a process of its own finds these tests, and the packages that this one found."""
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(filter(None, paths))


def test_programs_and_sources_do_not_depend_on_the_hash_seed() -> None:
    code = (
        "from scheduler_graphs import transformer\n"
        "from plait_scheduler import plan, print_program, render_python\n"
        "b, y = transformer(1)\n"
        "s = plan(b.graph(y))\n"
        "print(print_program(s.program), render_python(s.program), s.explain())\n"
    )
    texts = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": _paths()},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert texts[0] == texts[1]
    b, y = transformer(1)
    assert print_program(plan(b.graph(y)).program) in texts[0]


def test_torchs_own_compilers_are_not_imported() -> None:
    code = (
        "import sys\n"
        "import torch\n"
        "from scheduler_graphs import transformer\n"
        "from plait_scheduler import load_python, render_python, schedule\n"
        "b, y = transformer(1)\n"
        "load_python(render_python(schedule(b.graph(y))))(b.given)\n"
        "print([m for m in sys.modules if m in ('torch._dynamo', 'torch._inductor')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": _paths()},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_a_read_at_a_place_read_from_another_buffer_with_merged_dimensions() -> None:
    i0, i1 = Var("i0", 1), Var("i1", 6)
    place = CheckedIndex(Load("ids", [i0.expr, i1.expr], I64), as_index(5))
    out = Buffer("out", F32, CPU, Layout.of([1, 6]))
    graph = Graph(
        "take",
        (Buffer("x", F32, CPU, Layout.of([1, 5])), Buffer("ids", I64, CPU, Layout.of([1, 6]))),
        (Definition((out,), Pointwise((i0, i1), Load("x", [as_index(0), place], F32))),),
        (TensorRef("out"),),
    )
    x, ids = torch.randn(1, 5), torch.randint(-5, 5, (1, 6))
    assert torch.equal(_run(graph, x, ids)[0], x[:, ids[0]])


def test_random_numbers_are_drawn_in_the_order_of_the_graph() -> None:
    """The first call waits for a kernel that ends late, the last one's result is unused."""

    def rand(like: str) -> ExternCall:
        return ExternCall("aten::rand_like", "", (TensorRef(like), None, None, None, None, None))

    def pointwise(name: str, *reads: str) -> Definition:
        i0 = Var("i0", 4)
        value: Value = Load(reads[0], [i0.expr], F32)
        for read in reads[1:]:
            value = Op("add", [value, Load(read, [i0.expr], F32)])
        return Definition((_vector(name),), Pointwise((i0,), Op("sin", [value])))

    def _vector(name: str) -> Buffer:
        return Buffer(name, F32, CPU, Layout.of([4]))

    graph = Graph(
        "random",
        (_vector("x"),),
        (
            pointwise("a", "x"),
            Definition((_vector("r0"),), rand("a")),
            Definition((_vector("r1"),), rand("x")),
            Definition((_vector("unused"),), rand("x")),
            Definition((_vector("r2"),), rand("x")),
            pointwise("b", "a", "x"),
            pointwise("c", "r0", "r1", "r2", "b"),
        ),
        (TensorRef("r0"), TensorRef("r1"), TensorRef("r2"), TensorRef("c")),
    )
    torch.manual_seed(7)
    got = _run(graph, torch.randn(4))
    torch.manual_seed(7)
    torch.randn(4)
    expected = [torch.rand(4) for _ in range(4)]
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1], expected[1])
    assert torch.equal(got[2], expected[3])


def test_programs_without_work() -> None:
    x = Buffer("x", F32, CPU, Layout.of([3]))
    given = torch.randn(3)
    for inputs, outputs in (
        ((), ()),
        ((x,), ()),
        ((x,), (TensorRef("x"), TensorRef("x"))),
        ((x,), (None, 3, 2.5, True, as_index(4))),
    ):
        graph = Graph("idle", inputs, (), outputs)
        program = schedule(graph)
        assert parse_program(print_program(program)) == program
        got = _run(graph, *[given][: len(inputs)])
        assert len(got) == len(outputs)
        assert all(g is given for g, o in zip(got, outputs) if isinstance(o, TensorRef))


def test_a_constant_needs_no_input() -> None:
    i0 = Var("i0", 5)
    out = Buffer("out", F32, CPU, Layout.of([5]))
    graph = Graph(
        "two", (), (Definition((out,), Pointwise((i0,), Const(2.0, F32))),), (TensorRef("out"),)
    )
    assert torch.equal(_run(graph)[0], torch.full((5,), 2.0))


CHECKED = """\
program checked()
  inputs x, w
  arena 64
  buffer x: f32[4, 4] on cuda:1 = input 0
  buffer w: f32[4, 4] on cuda:1 = input 1
  buffer h: f32[4, 4] on cuda:1 = arena 0
  buffer y: f32[4, 4] on cuda:1 = extern
  kernel twice(p0: read f32[16], p1: write f32[16])
    for i0: 16
      outer store p1[i0] = mul(p0[i0], f32(2.0))
  steps
    allocate h
    launch twice(x, h) # from [["mul"], ["model.py:3 in f: x * \\"2\\""]]
    call new(y) = aten::mm(h, w)
    copyback x = h
    return y
"""


def test_checked_launches_are_waited_for_and_name_the_users_lines() -> None:
    program = parse_program(CHECKED)
    text = render_python(program, check_launches=True)
    assert "waited_for" not in render_python(program)
    waits = [line.strip() for line in text.splitlines() if "with waited_for(" in line]
    assert waits == [
        "with waited_for('what was launched before the program', 1):",
        "with waited_for('the kernel twice of model.py:3 in f: x * \"2\"', 1):",
        "with waited_for('the call of aten::mm', 1):",
        "with waited_for('the copy to the input x', 1):",
    ]
    run = load_python(text.replace("cuda:1", "cpu"))
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    before = x.clone()
    torch.testing.assert_close(run([x, w])[0], 2 * before @ w)
    assert torch.equal(x, 2 * before)


def test_an_error_tells_how_many_random_operators_had_run() -> None:
    def picked(x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor]:
        return ((torch.rand(3) + torch.randn(3))[at] + torch.rand(2) + x,)

    traced = make_fx(picked, tracing_mode="fake")(torch.ones(2), torch.tensor([0, 1]))
    run = load_python(render_python(schedule(lower(traced))))
    (found,) = run([torch.ones(2), torch.tensor([0, 1])])
    assert found.shape == (2,)
    with pytest.raises(IndexError) as raised:
        run([torch.ones(2), torch.tensor([0, 9])])
    assert draws_before(raised.value) in (2, 3)


@pytest.mark.parametrize(("kind", "wanted"), [("assign", 3.0), ("add", 6.0), ("max", 3.0)])
def test_numbers_are_combined_at_one_place(kind, wanted) -> None:
    memory = torch.zeros(4)
    values = torch.tensor([1.0, 2.0, 3.0])
    combine(memory, 2, (3,), values, kind, 4)
    assert memory.tolist() == [0, 0, wanted, 0]
