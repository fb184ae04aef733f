"""What is fused into one kernel, what is not, and that results stay right."""

from __future__ import annotations

import pytest
import torch
from scheduler_checks import kernel_count, run
from scheduler_graphs import F32, Builder, T, transformer

from plait_ir_lowering import (
    CheckedIndex,
    Const,
    DType,
    IndexValue,
    Load,
    Masked,
    Op,
    Pointwise,
    Var,
    as_index,
    interpret,
    parse_graph,
    to_torch_dtype,
)
from plait_scheduler import (
    Access,
    DecisionKind,
    Domain,
    Let,
    Reduce,
    SchedulerOptions,
    Store,
    load_python,
    plan,
    print_kernel,
    render_python,
    verify_program,
)
from plait_scheduler.inline import _Inliner

UNFUSED = SchedulerOptions(
    fuse_attention=False,
    fuse_pointwise=False,
    fuse_reductions=False,
    fuse_siblings=False,
    inline_producers=False,
    split_reductions=False,
    simplify_loops=False,
    reuse_memory=False,
    reuse_in_place=False,
)


@pytest.fixture
def b() -> Builder:
    torch.manual_seed(0)
    return Builder()


def test_layer_norm_and_softmax_are_one_kernel_reading_once_and_writing_once(b: Builder) -> None:
    x = b.input(torch.randn(64, 128))
    w, c = b.input(torch.randn(128)), b.input(torch.randn(128))
    schedule = run(b, b.softmax(b.layer_norm(x, w, c)))
    (kernel,) = schedule.program.kernels
    assert [p.access for p in kernel.params].count(Access.WRITE) == 1
    assert sum(isinstance(s, Reduce) for s in kernel.statements) == 4
    assert sum(isinstance(s, Store) for s in kernel.statements) == 1
    assert schedule.program.arena_nbytes.as_int() == 0


def test_what_does_not_vary_along_a_row_is_computed_once_a_row(b: Builder) -> None:
    x = b.input(torch.randn(16, 32))
    (kernel,) = run(b, b.layer_norm(x)).program.kernels
    outer = [s for s in kernel.statements if isinstance(s, Let) and s.domain is Domain.OUTER]
    assert any(
        "rsqrt" in print_kernel(kernel).splitlines()[2 + kernel.statements.index(s)] for s in outer
    )


def test_residual_add_and_layer_norm_write_the_sum_only_if_needed(b: Builder) -> None:
    x, y = b.input(torch.randn(16, 32)), b.input(torch.randn(16, 32))
    h = b.binary("add", x, y)
    one = run(b, b.layer_norm(h))
    assert len(one.program.kernels[0].params) == 3
    both = run(b, b.layer_norm(h), h)
    assert kernel_count(both) == 1
    assert len(both.program.kernels[0].params) == 4


def test_transformer_layers_share_their_kernels() -> None:
    """The first layer adds to an input, the others overwrite a temporary in place."""
    for layers, kernels in ((1, 6), (2, 7), (3, 7)):
        b, y = transformer(layers)
        schedule = run(b, y)
        assert kernel_count(schedule) == 8 * layers
        assert len(schedule.program.kernels) == kernels


def test_unfused_programs_compute_the_same() -> None:
    b, y = transformer(1)
    schedule = run(b, y, options=UNFUSED)
    assert kernel_count(schedule) == sum(
        d.body.__class__.__name__ != "ExternCall" for d in b.definitions
    )


def test_reshaped_reads_fuse(b: Builder) -> None:
    x, bias = b.input(torch.randn(6, 8)), b.input(torch.randn(8))
    y = b.view(b.binary("add", x, bias), (2, 3, 8))
    z = b.view(b.gelu(y), (6, 2, 4))
    assert kernel_count(run(b, b.unary("exp", z))) == 1


def test_permuted_reads_fuse(b: Builder) -> None:
    x = b.input(torch.randn(6, 8))
    y = b.permute(b.view(b.unary("exp", x), (6, 2, 4)), (1, 0, 2))
    z = b.contiguous(b.permute(b.unary("sin", y), (2, 1, 0)))
    assert kernel_count(run(b, z)) == 1


def test_reduction_over_leading_dimensions_fuses_with_its_surroundings(b: Builder) -> None:
    x = b.input(torch.randn(4, 8, 6, 5))
    e = b.unary("exp", x)
    mean = b.binary("div", b.reduce("sum", e, [0, 2, 3]), 120.0)
    assert kernel_count(run(b, b.binary("sub", e, mean))) == 1


def test_a_value_read_at_two_coordinates_is_stored(b: Builder) -> None:
    x = b.input(torch.randn(32, 32))
    e = b.unary("exp", x)
    schedule = run(b, b.binary("add", e, b.permute(e, (1, 0))))
    assert kernel_count(schedule) == 2
    (refused,) = [d for d in schedule.decisions if not d.accepted]
    assert "other coordinates" in refused.reason


def test_reductions_over_different_rows_stay_apart(b: Builder) -> None:
    x = b.input(torch.randn(64, 32))
    e = b.unary("exp", x)
    schedule = run(b, b.reduce("sum", e, [0]), b.reduce("sum", e, [1]))
    assert kernel_count(schedule) == 2


def test_a_chain_of_sums_of_products_writes_no_products() -> None:
    text = """graph chain()
  input row: f32[64] on cpu
  input first: f32[64, 64] on cpu
  input second: f32[64, 64] on cpu
  define terms: f32[64, 64] on cpu
    for i0: 64, i1: 64 = mul(row[i1], first[i0, i1])
  define sums: f32[64] on cpu
    reduce sum for i0: 64 over r0: 64 = terms[i0, r0]
  define more_terms: f32[64, 64] on cpu
    for i0: 64, i1: 64 = mul(sums[i1], second[i0, i1])
  define more_sums: f32[64] on cpu
    reduce sum for i0: 64 over r0: 64 = more_terms[i0, r0]
  return more_sums
"""
    graph = parse_graph(text)
    schedule = plan(graph)
    assert kernel_count(schedule) == 2
    assert len(schedule.program.kernels) == 1, "equal layers are one kernel"
    assert not any("terms" in buffer.name for buffer in schedule.program.buffers)
    assert "which saves far more" in schedule.explain()
    draw = torch.Generator().manual_seed(0)
    row = torch.randn(64, generator=draw)
    first, second = (
        torch.randint(-9, 9, (64, 64), generator=draw, dtype=torch.int8) for _ in range(2)
    )
    (found,) = load_python(render_python(schedule.program))([row, first, second])
    wanted = ((row.double() @ first.double().t()) @ second.double().t()).float()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-2)


def test_no_fusion_around_an_external_call(b: Builder) -> None:
    x, w = b.input(torch.randn(8, 8)), b.input(torch.randn(8, 8))
    e = b.unary("exp", x)
    y = b.binary("add", b.mm(e, w), e)
    schedule = run(b, y)
    assert kernel_count(schedule) == 2
    assert any("path through" in d.reason for d in schedule.decisions if not d.accepted)


def test_siblings_over_one_input_become_one_kernel(b: Builder) -> None:
    x = b.input(torch.randn(64, 64))
    schedule = run(b, b.unary("exp", x), b.unary("sin", x), b.reduce("sum", x, [1]))
    assert kernel_count(schedule) == 1
    apart = run(
        b, b.unary("exp", x), b.unary("sin", x), options=SchedulerOptions(fuse_siblings=False)
    )
    assert kernel_count(apart) == 2


def test_siblings_that_share_little_stay_apart(b: Builder) -> None:
    x, y, w = (b.input(torch.randn(*s)) for s in ((64, 64), (64, 64), (64,)))
    schedule = run(b, b.binary("mul", x, w), b.binary("mul", y, w))
    assert kernel_count(schedule) == 2


def test_readers_of_one_buffer_share_a_kernel_also_if_others_stand_between(b: Builder) -> None:
    """Mean and variance both sum x; the second sum is the first."""
    x = b.input(torch.randn(64, 128))
    mean = b.binary("div", b.reduce("sum", x, [1]), 128.0)
    other = b.unary("sin", b.permute(x, (1, 0)))
    again = b.reduce("sum", x, [1], keepdim=False)
    (kernel,) = run(b, mean, other, again).program.kernels
    assert sum(isinstance(s, Reduce) for s in kernel.statements) == 1


def test_loops_run_along_what_most_accesses_have_contiguous(b: Builder) -> None:
    x = b.input(torch.randn(32, 16).t())
    y = b.input(torch.randn(32, 16).t())
    (kernel,) = run(b, b.binary("add", x, y)).program.kernels
    assert "for i0: 32, i1: 16" in print_kernel(kernel)


def test_kernels_see_parameters_with_the_dimensions_that_they_use(b: Builder) -> None:
    x = b.input(torch.randn(4, 1, 6, 8))
    (kernel,) = run(b, b.softmax(x)).program.kernels
    assert "p0: read f32[24, 8]" in print_kernel(kernel)
    plain = run(b, b.softmax(x), options=SchedulerOptions(simplify_loops=False)).program.kernels[0]
    assert "p0: read f32[4, 1, 6, 8]" in print_kernel(plain)


def test_limits_keep_kernels_apart(b: Builder) -> None:
    total = b.input(torch.randn(16))
    for _ in range(8):
        total = b.binary("add", total, b.input(torch.randn(16)))
    assert kernel_count(run(b, total)) == 1
    schedule = run(b, total, options=SchedulerOptions(max_params=4))
    assert kernel_count(schedule) > 2
    assert all(len(k.params) <= 4 for k in schedule.program.kernels)
    schedule = run(b, total, options=SchedulerOptions(max_operations=2))
    assert any("operations" in d.reason for d in schedule.decisions if not d.accepted)


@pytest.mark.parametrize(
    ("switch", "kind"),
    [("fuse_pointwise", DecisionKind.POINTWISE), ("fuse_reductions", DecisionKind.REDUCTION)],
)
def test_each_kind_of_fusion_can_be_switched_off(
    b: Builder, switch: str, kind: DecisionKind
) -> None:
    x = b.input(torch.randn(64, 32))
    y = b.binary("mul", b.unary("exp", b.unary("sin", x)), 2.0)
    options = SchedulerOptions(**{switch: False})
    schedule = run(b, b.reduce("max", y, [1]), y, options=options)
    taken = [d for d in schedule.decisions if d.kind is kind]
    assert taken
    assert not any(d.accepted for d in taken)


def test_explanations_name_both_buffers_and_bytes(b: Builder) -> None:
    x = b.input(torch.randn(64, 32))
    text = run(b, b.unary("sin", b.unary("exp", x))).explain()
    assert "pointwise fusion of buf0 with buf1: done" in text
    assert "saves 16,384 bytes" in text


def test_cheap_producers_are_computed_where_they_are_broadcast(b: Builder) -> None:
    x, y = b.input(torch.randn(400, 30)), b.input(torch.randn(30))
    assert kernel_count(run(b, b.binary("mul", x, b.binary("add", y, 1.0)))) == 1


def test_expensive_producers_are_not_repeated(b: Builder) -> None:
    x, y = b.input(torch.randn(400, 30)), b.input(torch.randn(30))
    schedule = run(b, b.binary("mul", x, b.unary("exp", y)))
    assert kernel_count(schedule) == 2
    (refused,) = [d for d in schedule.decisions if d.kind is DecisionKind.INLINE]
    assert "would run at 12000 points, not 30" in refused.reason


def test_sliced_producers_are_inlined_even_if_expensive(b: Builder) -> None:
    x = b.input(torch.randn(64, 32))
    e = b.unary("exp", x)
    half = b.pointwise(lambda v: v, e.value[:16].clone(), e)
    body = half
    assert kernel_count(run(b, body)) == 1


def test_a_slice_of_a_concatenation_reads_only_its_part(b: Builder) -> None:
    """Inlined where it is sliced, the mask holds at every point, and goes."""
    x = b.input(torch.randn(8))

    def joined(v):
        mask = Op("lt", [IndexValue(v.index[0]), Const(8, DType.i64)])
        return Masked(mask, Op("exp", [v]), Const(0.0, DType.f32))

    wide = type(x)(x.buffer, (12,), x.dtype, x.at, torch.zeros(12))
    both = b.pointwise(joined, torch.cat([x.value.exp(), torch.zeros(4)]), wide)
    part = type(x)(both.buffer, (6,), x.dtype, both.at, both.value[:6])
    (kernel,) = run(b, b.unary("sin", part)).program.kernels
    assert "masked" not in print_kernel(kernel)


def test_a_guarded_load_is_not_named_for_other_statements(b: Builder) -> None:
    """Both outputs load x under a mask only; naming the load would read out of bounds."""
    x = b.input(torch.randn(8))

    def padded(scale: float):
        def op(v):
            place = v.index[0]
            mask = Op("lt", [IndexValue(place), Const(8, DType.i64)])
            load = Op("exp", [v])
            return Masked(mask, Op("mul", [load, Const(scale, DType.f32)]), Const(0.0, DType.f32))

        value = torch.cat([x.value.exp() * scale, torch.zeros(4)])
        wide = type(x)(x.buffer, (12,), x.dtype, x.at, value)
        return b.pointwise(op, value, wide)

    schedule = run(b, padded(2.0), padded(3.0), options=SchedulerOptions(inline_producers=False))
    for kernel in schedule.program.kernels:
        for statement in kernel.statements:
            assert not (isinstance(statement, Let) and isinstance(statement.value, Load))


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("size", [(1 << 17,), (100003,), (3, 300, 200)])
def test_large_reductions_are_split(b: Builder, kind: str, size: tuple[int, ...]) -> None:
    x = b.input(1 + torch.randn(*size, dtype=torch.float64) / 1000)
    dims = list(range(len(size)))[-2:] if len(size) > 1 else [0]
    schedule = run(b, b.reduce(kind, b.binary("mul", x, 1.0), dims))
    assert kernel_count(schedule) == 2
    assert min(k.outer[0].extent.as_int() for k in schedule.program.kernels if k.outer) >= 3
    assert [d.accepted for d in schedule.decisions if d.kind is DecisionKind.SPLIT] == [True]


def test_sums_of_neighbours_are_split_where_one_task_would_compute_them_all(b: Builder) -> None:
    last = b.input(torch.randn(4, 128, 160, 32))
    schedule = run(b, b.reduce("sum", last, [0, 1, 2]))
    assert kernel_count(schedule) == 2
    first = schedule.program.kernels[0]
    (partial,) = (param for param in first.params if param.access is Access.WRITE)
    assert partial.layout.numel.as_int() >= 8 * 32
    strides = dict(zip(partial.layout.size, partial.layout.stride, strict=True))
    assert strides[as_index(32)].as_int() == 1  # the sums of one chunk lie side by side


def test_sums_along_rows_of_as_many_are_not_split(b: Builder) -> None:
    first = b.input(torch.randn(32, 4 * 128 * 160))
    assert kernel_count(run(b, b.reduce("sum", first, [1]))) == 1


def test_what_a_reader_at_other_coordinates_needs_is_computed_there_up_the_chain(
    b: Builder,
) -> None:
    x, row, scale = (b.input(torch.randn(*size)) for size in ((32, 64), (64,), (64,)))
    moved = b.unary("abs", b.binary("add", b.binary("mul", row, scale), 1.0))
    (kernel,) = run(b, b.binary("sub", x, moved)).program.kernels
    assert len(kernel.params) == 4


def test_two_values_are_not_stored_so_that_one_need_not_be(b: Builder) -> None:
    x, y = b.input(torch.randn(1 << 14)), b.input(torch.randn(1 << 14))
    total = b.binary("add", b.binary("mul", x, y), b.binary("sub", x, y))
    schedule = run(b, b.binary("sub", b.input(torch.randn(3, 1 << 14)), total))
    assert kernel_count(schedule) == 2
    assert all(len(kernel.params) == 3 for kernel in schedule.program.kernels)


@pytest.mark.parametrize("kind", ["any", "all"])
@pytest.mark.parametrize("holds", [True, False])
def test_large_logical_reductions_are_split(b: Builder, kind: str, holds: bool) -> None:
    value = torch.full((100003,), kind == "all")
    value[77777] = holds
    schedule = run(b, b.reduce(kind, b.input(value), [0]))
    assert kernel_count(schedule) == 2


def test_rows_too_long_to_keep_are_read_again_from_memory(b: Builder) -> None:
    x = b.input(torch.randn(16, 512))
    options = SchedulerOptions(max_row_bytes=1024)
    total = b.reduce("sum", b.unary("exp", x), [1])
    assert kernel_count(run(b, total, options=options)) == 1
    schedule = run(b, b.softmax(x), options=options)
    assert kernel_count(schedule) == 3
    assert "too long to keep" in schedule.explain()


def test_gpus_get_more_parallel_reductions(b: Builder) -> None:
    x = b.input(torch.randn(4, 65536))
    assert kernel_count(run(b, b.softmax(x), options=SchedulerOptions.for_gpu())) == 5


def test_rows_that_take_no_longer_than_a_launch_are_not_split(b: Builder) -> None:
    x = b.input(torch.randn(16, 8192))
    assert kernel_count(run(b, b.softmax(x), options=SchedulerOptions.for_gpu())) == 1


def test_arg_reductions_are_not_split_and_say_so(b: Builder) -> None:
    x = b.input(torch.randn(1 << 16))
    schedule = run(b, b.reduce("argmax", x, [0]))
    assert kernel_count(schedule) == 1
    assert "extremum" in schedule.explain()


def test_arg_reductions_keep_the_order_of_their_rows(b: Builder) -> None:
    x = b.input(torch.randn(4, 6, 5))
    e = b.unary("exp", x)
    run(b, b.reduce("argmin", e, [2, 0]), b.reduce("sum", e, [0, 2]), b.reduce("argmax", e, [0, 2]))


def test_arg_reductions_take_bools(b: Builder) -> None:
    x = b.input(torch.tensor([[0.0, 2.0, 3.0], [1.0, -1.0, 0.0]]))
    y = b.reduce("argmax", b.binary("gt", x, 0.5), [1])
    assert run(b, y).program.kernels
    assert y.value.flatten().tolist() == [1, 0]


SPANNING = """\
graph t()
  input a: f64[3, 5] on cpu
  input b: f64[3, 5] on cpu
  input c: f64[3, 5] on cpu
  input eq_1: bool[3, 5] on cpu
  input n1: bool[3, 5] on cpu
  input full_2: f64[] on cpu
  input full_1: f64[3, 5] on cpu
  input ne: bool[3, 5] on cpu
  input n3: bool[3, 5] on cpu
  input n2: bool[3, 5] on cpu
  input full_4: f64[] on cpu
  input where_4: f64[3, 1] on cpu
  input d: f64[3, 5] on cpu
  input e: f64[3, 5] on cpu
  define mul_7: f64[3, 5] on cpu
    for i0: 3, i1: 5 = mul(a[i0, i1], b[i0, i1])
  define where: f64[3, 5] on cpu
    for i0: 3, i1: 5 = where(n1[i0, i1], full_2[()], mul_7[i0, i1])
  define flip_3: f64[3, 5] on cpu
    for i0: 3, i1: 5 = where[i0, -i1 + 4]
  define cumsum_1: f64[3, 5] on cpu
    call new aten::cumsum(flip_3, 1, None)
  define flip_4: f64[3, 5] on cpu
    for i0: 3, i1: 5 = cumsum_1[i0, -i1 + 4]
  define div: f64[3, 5] on cpu
    for i0: 3, i1: 5 = div(flip_4[i0, i1], c[i0, i1])
  define where_1: f64[3, 5] on cpu
    for i0: 3, i1: 5 = where(eq_1[i0, i1], div[i0, i1], full_1[i0, i1])
  define where_3: f64[3, 5] on cpu
    for i0: 3, i1: 5 = where(ne[i0, i1], full_2[()], b[i0, i1])
  define where_2: f64[3, 5] on cpu
    for i0: 3, i1: 5 = where(n2[i0, i1], full_4[()], c[i0, i1])
  define cumprod_2: f64[3, 5] on cpu
    call new aten::cumprod(where_2, 1, None)
  define mul_8: f64[3, 5] on cpu
    for i0: 3, i1: 5 = mul(cumprod_2[i0, i1], where_3[i0, i1])
  define sum_2_sum: f64[3, 1] on cpu
    reduce sum for i0: 3, i1: 1 over r0: 5 = mul_8[i0, r0]
  define mul_9: f64[3, 1] on cpu
    for i0: 3, i1: 1 = mul(sum_2_sum[i0, 0], where_4[i0, 0])
  define where_5: f64[3, 5] on cpu
    for i0: 3, i1: 5 = where(n3[i0, i1], mul_9[i0, 0], where_1[i0, i1])
  define flip_5: f64[3, 4] on cpu
    for i0: 3, i1: 4 = where_5[i0, -i1 + 4]
  define padded: f64[3, 5] on cpu
    call new aten::slice_backward(flip_5, [3, 5], 1, 1, 5, 1)
  define add: f64[3, 5] on cpu
    for i0: 3, i1: 5 = add(padded[i0, i1], d[i0, i1])
  define add_1: f64[3, 5] on cpu
    for i0: 3, i1: 5 = add(add[i0, i1], e[i0, i1])
  return add_1
"""


def test_groups_that_span_others_make_no_cycle() -> None:
    graph = parse_graph(SPANNING)
    schedule = plan(graph)
    verify_program(schedule.program)
    torch.manual_seed(0)
    given = [
        torch.randn([size.as_int() for size in each.layout.size]).to(to_torch_dtype(each.dtype))
        for each in graph.inputs
    ]
    (got,) = load_python(render_python(schedule.program))(given)
    torch.testing.assert_close(got, interpret(graph, given)[0])


def test_identical_graphs_give_identical_programs() -> None:
    first, second = (transformer(2) for _ in range(2))
    programs = [run(b, y).program for b, y in (first, second)]
    assert programs[0] == programs[1]


def test_dead_definitions_are_dropped(b: Builder) -> None:
    x = b.input(torch.randn(8))
    b.unary("exp", b.unary("sin", x))
    assert kernel_count(run(b, b.unary("cos", x))) == 1


def test_reduction_over_one_element_is_pointwise(b: Builder) -> None:
    x = b.input(torch.randn(8, 1))
    y = b.unary("exp", x)
    schedule = run(b, b.reduce("sum", x, [1]), b.reduce("argmax", y, [1]))
    assert not any("exp" in k.name for k in schedule.program.kernels)
    assert not any(isinstance(s, Reduce) for k in schedule.program.kernels for s in k.statements)


@pytest.mark.parametrize("size", [(0, 4), (4, 0), (0,), (2, 3, 0), (0, 2, 3)])
def test_empty_tensors(b: Builder, size: tuple[int, ...]) -> None:
    x = b.input(torch.randn(*size))
    run(b, b.reduce("sum", b.unary("exp", x), [-1]), b.binary("mul", x, 2.0))


def test_what_has_no_points_is_not_put_into_a_reduction_over_none(b: Builder) -> None:
    x, y = b.input(torch.randn(0)), b.input(torch.randn(3))
    total = b.reduce("sum", x, [0])
    columns = type(x)(x.buffer, (0, 3), x.dtype, lambda index: x.at(index[:1]), torch.zeros(0, 3))
    run(b, b.binary("add", b.binary("mul", columns, y), total), total)


def test_scalars(b: Builder) -> None:
    x, y = b.input(torch.randn(())), b.input(torch.randn(5, 3))
    run(b, b.binary("mul", y, b.unary("exp", x)), b.unary("sin", x))


def taken(b: Builder, source: T, places: T) -> T:
    """One element of each row of `source`, at the place that data name."""
    row = Var("i0", source.size[0])
    column = CheckedIndex(places.at([row.expr]), as_index(source.size[1]))
    value = Load(source.buffer, [row.expr, column], source.dtype)
    expected = source.value.gather(1, places.value.reshape(-1, 1))[:, 0]
    return b.define([source.size[0]], Pointwise((row,), value), expected)


def test_what_few_places_from_data_are_read_of_is_computed_there(b: Builder) -> None:
    x, places = b.input(torch.randn(64, 1000)), b.input(torch.randint(0, 1000, (64,)))
    largest = b.reduce("max", x, [1])
    shifted = b.binary("sub", x, largest)
    total = b.unary("log", b.reduce("sum", b.unary("exp", shifted), [1]))
    schedule = run(b, taken(b, b.binary("sub", shifted, total), places))
    stored = [each.layout.numel.as_int() for each in schedule.program.buffers[2:]]
    assert max(stored) == 64  # nothing as large as x


def test_what_is_read_at_most_places_from_data_is_stored(b: Builder) -> None:
    x, places = b.input(torch.randn(64, 2)), b.input(torch.randint(0, 2, (64,)))
    schedule = run(b, taken(b, b.unary("exp", x), places))
    reasons = [each.reason for each in schedule.decisions if not each.accepted]
    assert "it is read at coordinates that are computed from data" in reasons


def test_a_place_from_data_is_checked_though_nothing_is_read_there(b: Builder) -> None:
    rows, places = b.input(torch.randn(8, 1)), b.input(torch.tensor([0, 1, 2, 3, 4, 5, 6, 90]))
    wide = b.pointwise(lambda a: Op("exp", [a]), rows.value.exp().expand(8, 80), rows)
    row = Var("i0", 8)
    at = CheckedIndex(places.at([row.expr]), as_index(80))
    value = Load(wide.buffer, [row.expr, at], F32)
    taken = b.define([8], Pointwise((row,), value), torch.zeros(8))
    source = render_python(plan(b.graph(taken)).program)
    with pytest.raises(IndexError):
        load_python(source)(b.given)


def _sharing(layers: int) -> tuple[Builder, list[T]]:
    """Layers that read one computed mask, each through a value that is read by two rows at once."""
    torch.manual_seed(0)
    b = Builder()
    mask = b.unary("exp", b.input(torch.rand(16, 16)))
    results = []
    for _ in range(layers):
        shifted = b.binary("add", mask, b.input(torch.rand(16, 16)))
        results.append(b.binary("mul", b.input(torch.rand(2, 16, 16)), shifted))
    return b, results


def test_what_many_layers_read_is_not_considered_for_each_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    uses = _Inliner._uses

    def counted(self, producer):
        for use in uses(self, producer):
            found[-1] += 1
            yield use

    monkeypatch.setattr(_Inliner, "_uses", counted)
    for layers in (50, 100):
        b, results = _sharing(layers)
        found.append(0)
        run(b, *results)
    assert found[1] <= 2.2 * found[0]


def test_labels_take_logits_that_nobody_stores() -> None:
    text = """graph main()
  input x: bf16[96, 512] on cpu
  input label: i64[96] on cpu
  define wide: f32[96, 512] on cpu
    for i0: 96, i1: 512 = to(x[i0, i1], f32)
  define total: f32[96] on cpu
    reduce sum for i0: 96 over r0: 512 = wide[i0, r0]
  define share: f32[96] on cpu
    for i0: 96 = div(wide[i0, checked(label[i0], 512)], total[i0])
  return share
"""
    program = plan(parse_graph(text), options=SchedulerOptions.for_gpu()).program
    assert len(program.kernels) == 1
    assert [b.name for b in program.buffers] == ["x", "label", "share"]
    x, label = torch.rand(96, 512).bfloat16(), torch.randint(512, (96,))
    (share,) = load_python(render_python(program))([x, label])
    wanted = x.float()[torch.arange(96), label] / x.float().sum(1)
    torch.testing.assert_close(share, wanted)
