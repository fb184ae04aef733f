"""Products of rows and columns, summed in tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from cpp_graphs import CPU, buffer

from plait_cpp_codegen import CppOptions, build
from plait_cpp_codegen.kernels.byte_products import ByteProductWriter
from plait_cpp_codegen.kernels.emit import product_writer
from plait_cpp_codegen.kernels.factors import factors_of
from plait_cpp_codegen.kernels.plan import plan_loops
from plait_ir_lowering import (
    Buffer,
    CheckedIndex,
    Const,
    Definition,
    DType,
    Graph,
    IndexValue,
    Layout,
    Load,
    Op,
    Pointwise,
    Reduction,
    ReductionKind,
    TensorRef,
    Value,
    Var,
    as_index,
)
from plait_scheduler import Kernel, load_python, render_python, schedule, verify_program

Parts = Callable[[Sequence[Var]], Value]


def product_graph(
    inputs: dict[str, torch.Tensor],
    sizes: Sequence[int],
    inner: Sequence[int],
    terms: Sequence[Parts],
    finish: Callable[[Sequence[Value], Sequence[Var]], Value],
) -> Graph:
    """`finish` of the sums of each of `terms`, which take outer and then inner variables."""
    outer = [Var(f"i{n}", size) for n, size in enumerate(sizes)]
    around = [Var(f"r{n}", size) for n, size in enumerate(inner)]
    definitions, sums = [], []
    for number, term in enumerate(terms):
        value = term([*outer, *around])
        made = Buffer(f"sum{number}", value.dtype, CPU, Layout.of(sizes))
        body = Reduction(tuple(outer), tuple(around), ReductionKind.SUM, value)
        definitions.append(Definition((made,), body))
        sums.append(Load(made.name, [v.expr for v in outer], made.dtype))
    result = finish(sums, outer)
    y = Buffer("y", result.dtype, CPU, Layout.of(sizes))
    definitions.append(Definition((y,), Pointwise(tuple(outer), result)))
    buffers = tuple(buffer(name, tensor) for name, tensor in inputs.items())
    return Graph("product", buffers, tuple(definitions), (TensorRef("y"),))


def at(name: str, dtype: DType, *places: Var) -> Load:
    return Load(name, [place.expr for place in places], dtype)


def linear(x: torch.Tensor, w: torch.Tensor, transposed: bool = True) -> Graph:
    """`x @ w` or, with a linear layer's weight, `x @ w.T`."""
    m, k = x.shape
    n = w.shape[0] if transposed else w.shape[1]
    of = buffer("x", x).dtype
    wide = DType.f32 if of.is_reduced_precision else of

    def cast(value: Value, dtype: DType) -> Value:
        return value if value.dtype is dtype else Op("to", [value], dtype)

    def term(places: Sequence[Var]) -> Value:
        i, j, r = places
        read = at("w", of, j, r) if transposed else at("w", of, r, j)
        return Op("mul", [cast(at("x", of, i, r), wide), cast(read, wide)])

    return product_graph({"x": x, "w": w}, [m, n], [k], [term], lambda sums, _: cast(sums[0], of))


def byte_graph(x: torch.Tensor, w: torch.Tensor) -> Graph:
    """`x @ w.T` of bytes, in int32."""
    dtypes = [buffer("", each).dtype for each in (x, w)]

    def term(v: Sequence[Var]) -> Value:
        factors = at("x", dtypes[0], v[0], v[2]), at("w", dtypes[1], v[1], v[2])
        return Op("mul", [Op("to", [each], DType.i32) for each in factors])

    sizes = [x.shape[0], w.shape[0]]
    return product_graph({"x": x, "w": w}, sizes, [x.shape[1]], [term], lambda sums, _: sums[0])


def kernel_of(graph: Graph) -> Kernel:
    (kernel,) = schedule(graph).kernels
    return kernel


def is_tiled(graph: Graph) -> bool:
    return product_writer(plan_loops(kernel_of(graph), 32), 32) is not None


def run(graph: Graph, *inputs: torch.Tensor) -> torch.Tensor:
    """The result in C++, which is about that of Python over ATen."""
    program = schedule(graph)
    verify_program(program)
    executable = build(program)
    assert executable.fallback_reason is None, executable.fallback_reason
    (found,) = executable(*inputs)
    (plain,) = load_python(render_python(program))(inputs)
    rtol = 2e-2 if found.itemsize == 2 else 1e-4
    torch.testing.assert_close(found, plain, rtol=rtol, atol=1e-3, equal_nan=True)
    return found


SIZES = [(1, 40, 64), (1, 9, 17), (4, 16, 16), (7, 50, 33), (50, 11, 40)]
MORE = [(3, 8, 9), (13, 70, 600)]


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.sampled(2)
def test_errors_are_about_those_of_eager(dtype, transposed):
    wide = dtype if dtype is torch.float64 else torch.float32
    for m, n, k in SIZES if dtype is torch.float32 else MORE:
        x = torch.randn(m, k).to(dtype)
        w = torch.randn((n, k) if transposed else (k, n)).to(dtype)
        graph = linear(x, w, transposed)
        assert is_tiled(graph)
        exact = x.double() @ (w.double().T if transposed else w.double())
        found = (run(graph, x, w).double() - exact).abs().max()
        eager = ((x @ (w.T if transposed else w)).double() - exact).abs().max()
        assert found <= 3 * eager + torch.finfo(wide).eps * 8 * exact.abs().max(), (m, n, k)


@pytest.mark.parametrize("transposed", [True, False])
def test_long_sums_lose_little(transposed):
    """Numbers alike, of which one sum after another would lose three digits of seven."""
    x, w = torch.full((2, 20_000), 0.1), torch.full((8, 20_000), 1.1)
    w = w if transposed else w.T.contiguous()
    found = run(linear(x, w, transposed), x, w).double()
    exact = 20_000 * x[0, 0].double() * w[0, 0].double()
    assert ((found - exact) / exact).abs().max() < 3e-6


@pytest.mark.parametrize("transposed", [True, False])
def test_a_row_has_the_same_bits_beside_other_rows(transposed):
    x = torch.randn(11, 77)
    w = torch.randn((30, 77) if transposed else (77, 30))
    whole = run(linear(x, w, transposed), x, w)
    for rows in (2, 5, 9):
        part = x[:rows].contiguous()
        assert torch.equal(run(linear(part, w, transposed), part, w), whole[:rows])


def test_results_do_not_depend_on_threads():
    x, w = torch.randn(5, 300), torch.randn(900, 300)
    executable = build(schedule(linear(x, w)))
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(executable(x, w)[0])
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_infinities_and_nan_stay_in_their_rows_and_columns():
    x, w = torch.randn(6, 50), torch.randn(20, 50)
    x[2, 3], w[7, 49] = torch.inf, torch.nan
    found, eager = run(linear(x, w), x, w), x @ w.T
    assert torch.equal(found.isnan(), eager.isnan())
    assert torch.equal(found.isinf(), eager.isinf())


def test_two_products_of_one_row_are_one_kernel_with_what_follows():
    """The gate of a Llama."""
    x, g, u = torch.randn(5, 64), torch.randn(48, 64), torch.randn(48, 64)

    def part(name: str) -> Parts:
        return lambda v: Op(
            "mul", [at("x", DType.f32, v[0], v[2]), at(name, DType.f32, v[1], v[2])]
        )

    def gate(sums: Sequence[Value], _: Sequence[Var]) -> Value:
        return Op("mul", [Op("mul", [sums[0], Op("sigmoid", [sums[0]])]), sums[1]])

    inputs = {"x": x, "g": g, "u": u}
    graph = product_graph(inputs, [5, 48], [64], [part("g"), part("u")], gate)
    factors = factors_of(kernel_of(graph))
    assert factors is not None
    assert len(factors.sums) == 2
    expected = torch.nn.functional.silu(x @ g.T) * (x @ u.T)
    torch.testing.assert_close(run(graph, x, g, u), expected, rtol=1e-4, atol=1e-4)


def test_what_is_computed_for_rows_is_kept_for_a_task():
    x, s, w = torch.randn(9, 70), torch.randn(70), torch.randn(30, 70)

    def term(v: Sequence[Var]) -> Value:
        i, j, r = v
        row = Op("tanh", [Op("mul", [at("x", DType.f32, i, r), at("s", DType.f32, r)])])
        return Op("mul", [row, at("w", DType.f32, j, r)])

    graph = product_graph({"x": x, "s": s, "w": w}, [9, 30], [70], [term], lambda p, _: p[0])
    writer = product_writer(plan_loops(kernel_of(graph), 32), 32)
    assert writer is not None
    assert list(writer.kept.values()) == ["row0"]
    torch.testing.assert_close(run(graph, x, s, w), (x * s).tanh() @ w.T, rtol=1e-4, atol=1e-4)


def test_rows_of_transposed_matrices_are_kept_in_order():
    x, w = torch.randn(70, 9), torch.randn(30, 70)

    def term(v: Sequence[Var]) -> Value:
        return Op("mul", [at("x", DType.f32, v[2], v[0]), at("w", DType.f32, v[1], v[2])])

    graph = product_graph({"x": x, "w": w}, [9, 30], [70], [term], lambda p, _: p[0])
    assert is_tiled(graph)
    torch.testing.assert_close(run(graph, x, w), x.T @ w.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("keys", [True, False])
def test_batches(keys):
    x, w = torch.randn(3, 5, 40), torch.randn((3, 21, 40) if keys else (3, 40, 21))

    def term(v: Sequence[Var]) -> Value:
        z, i, j, r = v
        places = (z, j, r) if keys else (z, r, j)
        return Op("mul", [at("x", DType.f32, z, i, r), at("w", DType.f32, *places)])

    graph = product_graph({"x": x, "w": w}, [3, 5, 21], [40], [term], lambda p, _: p[0])
    factors = factors_of(kernel_of(graph))
    assert factors is not None
    assert len(factors.batches) == 1
    expected = x @ (w.mT if keys else w)
    torch.testing.assert_close(run(graph, x, w), expected, rtol=1e-4, atol=1e-4)


def test_sums_over_heads_that_lie_apart():
    """The output of an attention, whose heads are not next to each other."""
    x, w = torch.randn(2, 3, 7, 16), torch.randn(20, 48)  # batch, head, row, element

    def term(v: Sequence[Var]) -> Value:
        b, i, j, h, d = v
        column = Load("w", [j.expr, h.expr * 16 + d.expr], DType.f32)
        return Op("mul", [at("x", DType.f32, b, h, i, d), column])

    graph = product_graph({"x": x, "w": w}, [2, 7, 20], [3, 16], [term], lambda p, _: p[0])
    factors = factors_of(kernel_of(graph))
    assert factors is not None
    assert len(factors.rows) == 2
    expected = x.transpose(1, 2).reshape(2, 7, 48) @ w.T
    torch.testing.assert_close(run(graph, x, w), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("inner", [10, 64, 90, 256])
@pytest.mark.parametrize(
    "types", [(torch.int8, torch.int8), (torch.uint8, torch.int8), (torch.int8, torch.uint8)]
)
def test_bytes_are_multiplied_as_integers(types, inner):
    """Four at once, exactly, also the largest."""
    x, w = (torch.randint(-300, 300, (n, inner)).to(t) for n, t in zip((6, 35), types, strict=True))
    for tensor in (x, w):
        limits = torch.iinfo(tensor.dtype)
        tensor[0], tensor[1] = limits.min, limits.max
    graph = byte_graph(x, w)
    assert isinstance(product_writer(plan_loops(kernel_of(graph), 32), 32), ByteProductWriter)
    assert torch.equal(run(graph, x, w), x.int() @ w.int().T)


def test_unsigned_bytes_are_multiplied_one_by_one():
    x, w = (torch.randint(0, 256, (n, 70)).to(torch.uint8) for n in (3, 12))
    graph = byte_graph(x, w)
    assert not isinstance(product_writer(plan_loops(kernel_of(graph), 32), 32), ByteProductWriter)
    assert torch.equal(run(graph, x, w), x.int() @ w.int().T)


def test_compilers_without_instructions_for_bytes_add_the_same():
    options = CppOptions(extra_flags="-U__AVX512VNNI__ -U__AVXVNNI__")
    x, w = (torch.randint(-128, 128, (n, 150)).to(torch.int8) for n in (6, 35))
    executable = build(schedule(byte_graph(x, w)), options=options)
    assert executable.fallback_reason is None, executable.fallback_reason
    assert torch.equal(executable(x, w)[0], x.int() @ w.int().T)


def test_a_weight_of_bytes_is_scaled_where_it_is_multiplied():
    x, w = torch.randn(4, 64), torch.randint(-128, 128, (40, 64), dtype=torch.int8)
    s = torch.rand(40)

    def term(v: Sequence[Var]) -> Value:
        i, j, r = v
        weight = Op("mul", [Op("to", [at("w", DType.i8, j, r)], DType.f32), at("s", DType.f32, j)])
        return Op("mul", [at("x", DType.f32, i, r), weight])

    graph = product_graph({"x": x, "w": w, "s": s}, [4, 40], [64], [term], lambda p, _: p[0])
    assert is_tiled(graph)
    expected = x @ (w.float() * s[:, None]).T
    torch.testing.assert_close(run(graph, x, w, s), expected, rtol=1e-4, atol=1e-3)


def test_what_is_no_product_of_rows_and_columns_is_not_taken_for_one():
    x, w = torch.randn(9, 70), torch.randn(30, 70)

    def kernel(term: Parts) -> Kernel:
        return kernel_of(product_graph({"x": x, "w": w}, [9, 30], [70], [term], lambda p, _: p[0]))

    def masked(v: Sequence[Var]) -> Value:
        seen = Op("lt", [IndexValue(v[2].expr), IndexValue(v[0].expr + v[1].expr)])
        factors = [at("x", DType.f32, v[0], v[2]), at("w", DType.f32, v[1], v[2])]
        return Op("where", [seen, Op("mul", factors), Const(0, DType.f32)])

    assert factors_of(kernel(lambda v: at("w", DType.f32, v[1], v[2]))) is None
    graph = product_graph({"x": x, "w": w}, [9, 30], [70], [masked], lambda p, _: p[0])
    factors = factors_of(kernel_of(graph))
    assert factors is not None
    assert not factors.rows  # what is masked differs from row to row
    seen = torch.arange(70) < torch.arange(9)[:, None, None] + torch.arange(30)[:, None]
    expected = (seen * x[:, None] * w).sum(-1)
    torch.testing.assert_close(run(graph, x, w), expected, rtol=1e-4, atol=1e-4)


def test_rows_that_are_chosen_are_kept():
    """The rows of an embedding."""
    table, ids, w = torch.randn(12, 40), torch.tensor([3, 11, 0, -1, 5]), torch.randn(30, 40)

    def term(v: Sequence[Var]) -> Value:
        index = CheckedIndex(at("ids", DType.i64, v[0]), as_index(12))
        row = Load("table", [index, v[2].expr], DType.f32)
        return Op("mul", [row, at("w", DType.f32, v[1], v[2])])

    inputs = {"table": table, "ids": ids, "w": w}
    graph = product_graph(inputs, [5, 30], [40], [term], lambda p, _: p[0])
    found = run(graph, table, ids, w)
    torch.testing.assert_close(found, table[ids] @ w.T, rtol=1e-4, atol=1e-4)
    with pytest.raises(IndexError):
        build(schedule(graph))(table, torch.tensor([3, 12, 0, -1, 5]), w)


def test_products_that_fill_no_vectors_are_other_loops():
    """Points in space, turned."""
    x, w = torch.randn(500, 3), torch.randn(3, 3)
    for transposed in (True, False):
        graph = linear(x, w, transposed)
        assert not is_tiled(graph)
        run(graph, x, w)
