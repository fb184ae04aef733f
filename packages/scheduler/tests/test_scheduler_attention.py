"""Products between which rows become their softmax are one kernel, on CPUs."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from plait_ir_lowering import (
    Attention,
    Graph,
    Pointwise,
    interpret,
    parse_graph,
    print_graph,
    verify,
)
from plait_scheduler import (
    Attend,
    KeyLimit,
    Limits,
    ProgramError,
    Schedule,
    SchedulerOptions,
    kernel_work,
    key_limits,
    load_python,
    may_fail,
    parse_program,
    plan,
    print_program,
    render_python,
    verify_kernel,
)
from plait_scheduler.attention import fuse_attention
from plait_scheduler.decisions import DecisionLog

CAUSAL = 'where(ge(index(i2), index(i3)), mul(s[i0*3 + i1, i2, i3], f32(0.5)), f32("-inf"))'
EARLY = 'where(lt(index(i2), i64(9)), mul(s[i0*3 + i1, i2, i3], bias[i1, i2, i3]), f32("-inf"))'
PLAIN = "mul(s[i0*3 + i1, i2, i3], f32(0.5))"


def attention(
    score: str = CAUSAL,
    *,
    safe: bool = True,
    rows: int = 20,
    returned: str = "o",
    divisor: str = "total[i0, i1, i2, 0]",
    narrow: bool = False,
    device: str = "cpu",
) -> Graph:
    whole, ends = f"[2, 3, {rows}, 30]", f"[2, 3, {rows}, 1]"
    loops = f"i0: 2, i1: 3, i2: {rows}"
    weights = f"div(e[i0, i1, i2, i3], {divisor})"
    if safe:
        weights = f"where(none[i0, i1, i2, 0], f32(0.0), {weights})"
    kind = "bf16" if narrow else "f32"
    weights = f"to({weights}, bf16)" if narrow else weights
    graph = parse_graph(f"""graph main()
  input q: f32[6, {rows}, 8] on {device}
  input k: f32[6, 30, 8] on {device}
  input v: {kind}[6, 30, 5] on {device}
  input bias: f32[3, {rows}, 30] on {device}
  define s: f32[6, {rows}, 30] on {device}
    call out aten::bmm.out(q, k.view([6, 8, 30], [240, 1, 8], 0))
  define f: f32{whole} on {device}
    for {loops}, i3: 30 = {score}
  define gone: bool{whole} on {device}
    for {loops}, i3: 30 = eq(f[i0, i1, i2, i3], f32("-inf"))
  define none: bool{ends} on {device}
    reduce all for {loops}, i3: 1 over r0: 30 = gone[i0, i1, i2, r0]
  define top: f32{ends} on {device}
    reduce max for {loops}, i3: 1 over r0: 30 = f[i0, i1, i2, r0]
  define e: f32{whole} on {device}
    for {loops}, i3: 30 = exp(sub(f[i0, i1, i2, i3], top[i0, i1, i2, 0]))
  define total: f32{ends} on {device}
    reduce sum for {loops}, i3: 1 over r0: 30 = e[i0, i1, i2, r0]
  define w: {kind}{whole} on {device}
    for {loops}, i3: 30 = {weights}
  define o: {kind}[6, {rows}, 5] on {device}
    call out aten::bmm.out(w.view([6, {rows}, 30], [{rows * 30}, 30, 1], 0), v)
  return {returned}
""")
    verify(graph)
    return graph


def run(graph: Graph, **options: object) -> Schedule:
    """Schedule and run it as Python; the results are those of the graph as it was."""
    schedule = plan(graph, options=SchedulerOptions(**options))
    assert parse_program(print_program(schedule.program)) == schedule.program
    draw = torch.Generator().manual_seed(0)
    kinds = {"f32": torch.float32, "bf16": torch.bfloat16}
    given = [
        torch.randn([n.as_int() for n in b.layout.size], generator=draw).to(kinds[str(b.dtype)])
        for b in graph.inputs
    ]
    found = load_python(render_python(schedule.program))(given)
    for got, meant in zip(found, interpret(graph, given), strict=True):
        limit = 1e-2 if got.dtype is torch.bfloat16 else 1e-5
        torch.testing.assert_close(got, meant, rtol=limit, atol=limit, equal_nan=True)
    return schedule


def attends(schedule: Schedule) -> list[Attend]:
    kernels = schedule.program.kernels
    return [s for kernel in kernels for s in kernel.statements if isinstance(s, Attend)]


@pytest.mark.parametrize("narrow", [False, True], ids=["f32", "bf16"])
@pytest.mark.parametrize("score", [CAUSAL, EARLY, PLAIN], ids=["causal", "early", "plain"])
@pytest.mark.parametrize("safe", [True, False], ids=["zeros", "nan"])
def test_two_products_around_a_softmax_are_one_kernel(score: str, safe: bool, narrow: bool):
    schedule = run(attention(score, safe=safe, narrow=narrow))
    (found,) = attends(schedule)
    assert found.zeros is safe
    assert len(schedule.program.kernels) == 1
    assert schedule.program.arena_nbytes.as_int() == 0
    assert "attention in one kernel of s with o: done" in schedule.explain()


def test_the_graph_with_attention_means_the_same():
    graph = attention(EARLY)
    fused = fuse_attention(graph, SchedulerOptions(), DecisionLog())
    verify(fused)
    assert parse_graph(print_graph(fused)) == fused
    (definition,) = fused.definitions
    assert isinstance(definition.body, Attention)
    given = [torch.randn([n.as_int() for n in b.layout.size]) for b in graph.inputs]
    torch.testing.assert_close(interpret(fused, given), interpret(graph, given))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"returned": "o, s"}, "something else reads s"),
        ({"returned": "o, w"}, "something else reads s"),
        ({"returned": "o, total"}, "something else reads s"),
        ({"rows": 4}, "there are few rows"),
        ({"divisor": "top[i0, i1, i2, 0]"}, None),
        ({"score": "mul(s[i0*3 + i1, i2, 29 - i3], f32(0.5))"}, None),
        ({"score": "add(s[i0*3 + i1, i2, i3], s[i0*3 + i1, i2, 0])"}, None),
    ],
)
def test_other_programs_stay_as_they_are(change: dict[str, object], reason: str | None):
    schedule = run(attention(**change))
    assert not attends(schedule)
    if reason is not None:
        assert f"attention in one kernel of s with o: not done because {reason}" in (
            schedule.explain()
        )


def test_it_can_be_switched_off():
    assert not attends(run(attention(), fuse_attention=False))
    assert not attends(run(attention(), fuel=0))


def test_other_devices_have_no_such_kernel():
    options = SchedulerOptions(verify=False)
    assert not attends(plan(attention(device="xpu:0"), options=options))


def test_what_it_moves_and_computes_is_counted():
    (kernel,) = run(attention(PLAIN)).program.kernels
    work = kernel_work(kernel)
    assert work.bytes_read == 4 * 6 * (20 * 8 + 30 * 8 + 30 * 5)
    assert work.bytes_written == 4 * 6 * 20 * 5
    assert work.operations >= 6 * 20 * 30 * 2 * (8 + 5)


def test_a_kernel_of_matrices_that_do_not_fit_is_refused():
    (kernel,) = run(attention(PLAIN)).program.kernels
    (attend,) = kernel.statements
    wrong = dataclasses.replace(attend, keys=attend.values)
    with pytest.raises(ProgramError, match="matrices fit each other"):
        verify_kernel(dataclasses.replace(kernel, statements=(wrong,)))
    with pytest.raises(ProgramError, match="a kernel of its own"):
        verify_kernel(dataclasses.replace(kernel, statements=(attend, attend)))


def flex(mask: str, rows: int = 20, keys: int = 300, dtype: str = "bf16", kind: str = "cpu"):
    """As `flex_attention` is lowered: widened copies of queries, of keys that heads share, and a
    gather of what a mask reads."""
    whole, ends = f"[2, 4, {rows}, {keys}]", f"[2, 4, {rows}, 1]"
    loops = f"i0: 2, i1: 4, i2: {rows}"
    pairs = f"{loops}, i3: {keys}"
    every = f"i0: 2, i1: 2, i2: 2, i3: {keys}, i4: 16"
    graph = parse_graph(f"""graph main()
  input q: {dtype}[2, 4, {rows}, 16] stride [{rows * 64}, 16, 64, 1] offset 0 on {kind}
  input k: {dtype}[2, 2, {keys}, 16] on {kind}
  input v: {dtype}[2, 2, {keys}, 16] on {kind}
  input documents: i64[{keys}] on {kind}
  define d: i64[{keys}] on {kind}
    for i0: {keys} = documents[checked(index(i0), {keys})]
  define kk: {dtype}[2, 2, 2, {keys}, 16] on {kind}
    for {every} = k[i0, i1, i3, i4]
  define vv: {dtype}[2, 2, 2, {keys}, 16] on {kind}
    for {every} = v[i0, i1, i3, i4]
  define wide: f32[2, 2, 2, {keys}, 16] on {kind}
    for {every} = to(kk[i0, i1, i2, i3, i4], f32)
  define qq: f32[2, 4, {rows}, 16] on {kind}
    for i0: 2, i1: 4, i2: {rows}, i3: 16 = to(q[i0, i1, i2, i3], f32)
  define s: f32[8, {rows}, {keys}] on {kind}
    call out aten::bmm.out(qq.view([8, {rows}, 16], [{rows * 16}, 16, 1], 0), \
wide.view([8, 16, {keys}], [{keys * 16}, 1, 16], 0))
  define f: f32{whole} on {kind}
    for {pairs} = where({mask}, s[i0*4 + i1, i2, i3], f32("-inf"))
  define gone: bool{whole} on {kind}
    for {pairs} = eq(f[i0, i1, i2, i3], f32("-inf"))
  define none: bool{ends} on {kind}
    reduce all for {loops}, i3: 1 over r0: {keys} = gone[i0, i1, i2, r0]
  define top: f32{ends} on {kind}
    reduce max for {loops}, i3: 1 over r0: {keys} = f[i0, i1, i2, r0]
  define e: f32{whole} on {kind}
    for {pairs} = exp(sub(f[i0, i1, i2, i3], top[i0, i1, i2, 0]))
  define total: f32{ends} on {kind}
    reduce sum for {loops}, i3: 1 over r0: {keys} = e[i0, i1, i2, r0]
  define w: {dtype}{whole} on {kind}
    for {pairs} = to(where(none[i0, i1, i2, 0], f32(0.0), \
div(e[i0, i1, i2, i3], total[i0, i1, i2, 0])), {dtype})
  define o: {dtype}[8, {rows}, 16] on {kind}
    call out aten::bmm.out(w.view([8, {rows}, {keys}], [{rows * keys}, {keys}, 1], 0), \
vv.view([8, {keys}, 16], [{keys * 16}, 16, 1], 0))
  return o
""")
    verify(graph)
    return graph


IN_DOCUMENT = "logical_and(ge(index(i2), index(i3)), eq(d[i2], d[i3]))"
GPU = SchedulerOptions.for_gpu()


def for_gpu(graph: Graph, documents: int = 3) -> Schedule:
    """Schedule as for a GPU and run as Python; the results are those of the graph as it was."""
    found = plan(graph, options=GPU)
    assert parse_program(print_program(found.program)) == found.program
    draw = torch.Generator().manual_seed(0)
    sizes = [[n.as_int() for n in b.layout.size] for b in graph.inputs]
    given = [torch.randn(size, generator=draw).bfloat16() for size in sizes[:3]]
    given[0] = given[0].transpose(1, 2).contiguous().transpose(1, 2)
    given.append(torch.arange(sizes[3][0]) * documents // sizes[3][0])
    made = load_python(render_python(found.program))(given)
    torch.testing.assert_close(made, tuple(interpret(graph, given)), rtol=1e-2, atol=1e-2)
    return found


def test_on_gpus_operands_are_read_where_they_lie():
    found = for_gpu(flex("ge(index(i2), index(i3))"))
    (attend,) = attends(found)
    assert len(found.program.kernels) == 1
    q, k, v = (ref.view for ref in attend.refs)
    numbers = [[each.as_int() for each in view.stride] for view in (q, k, v) if view is not None]
    assert numbers == [[1280, 16, 64, 1], [9600, 4800, 0, 1, 16], [9600, 4800, 0, 16, 1]]


def test_masks_of_data_are_reduced_to_spans_of_keys():
    (attend,) = attends(for_gpu(flex(IN_DOCUMENT, rows=280)))
    assert len(attend.spans) == 3


@pytest.mark.parametrize(
    ("mask", "rows", "keys"),
    [
        ("ge(index(i2), index(i3))", 280, 300),  # its form says it
        (IN_DOCUMENT, 90, 100),  # there are few keys
        ("eq(documents[checked(d[i3], 300)], d[i3])", 280, 300),  # an index could be wrong
        ("eq(documents[checked(sub(index(i2), i64(1)), 300)], d[i3])", 280, 300),
    ],
)
def test_other_masks_are_not(mask: str, rows: int, keys: int):
    found = plan(flex(mask, rows, keys), options=GPU)
    assert [attend.spans for attend in attends(found)] == [()]


def test_indices_that_are_right_by_their_form_are_not_checked():
    place = "add(sub(index(i3), index(i2)), i64(279))"
    mask = f"eq(documents[checked({place}, 600)], d[i3])"
    graph = print_graph(flex("ge(index(i2), index(i3))", rows=280)).replace(
        "documents: i64[300]", "documents: i64[600]"
    )
    graph = parse_graph(graph.replace("ge(index(i2), index(i3))", mask))
    (attend,) = attends(plan(graph, options=GPU))
    assert len(attend.spans) == 3
    assert not may_fail(attend.value)


def test_rows_too_long_for_a_kernel_and_doubles_stay_products():
    options = dataclasses.replace(GPU, max_head_size=8, verify=False)
    found = plan(flex(IN_DOCUMENT), options=options)
    assert not attends(found)
    assert "rows of q have more than 8 elements" in found.explain()
    doubles = parse_graph(print_graph(attention(device="cuda:0")).replace("f32", "f64"))
    found = plan(doubles, options=dataclasses.replace(GPU, verify=False))
    assert not attends(found)
    assert "GPUs have no kernel for scores of f64" in found.explain()


@pytest.mark.parametrize(
    ("mask", "limits"),
    [
        ("ge(index(i2), index(i3))", "up to i2"),
        ("lt(sub(index(i2), index(i3)), i64(7))", "from i2 - 6"),
        ("eq(index(i2), index(i3))", "all(up to i2, from i2)"),
        ("gt(mul(index(i2), i64(2)), index(i3))", "up to i2*2 - 1"),
        (
            "logical_or(lt(index(i3), i64(9)), ge(index(i2 + 1), index(i3)))",
            "any(up to 8, up to i2 + 1)",
        ),
        ("ge(index(i2), i64(3))", None),
        ("ge(index(i2//4), index(i3//4))", None),
        ("eq(d[i2], d[i3])", None),
    ],
)
def test_what_masks_say_by_their_form(mask: str, limits: str | None):
    graph = parse_graph(f"""graph main()
  input d: i64[300] on cpu
  define m: bool[300, 300] on cpu
    for i2: 300, i3: 300 = {mask}
  return m
""")
    body = graph.definitions[0].body
    assert isinstance(body, Pointwise)
    found = key_limits(body.value, *body.ranges)
    assert (None if found is None else shown(found)) == limits


def shown(limits: Limits) -> str:
    if isinstance(limits, KeyLimit):
        return f"{'from' if limits.is_low else 'up to'} {limits.place}"
    return f"{'any' if limits.is_any else 'all'}({', '.join(map(shown, limits.parts))})"
