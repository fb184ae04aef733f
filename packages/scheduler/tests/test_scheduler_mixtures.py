"""Products of what is computed of other products are one kernel: gradients of attention."""

from __future__ import annotations

import pytest
import torch

from plait_ir_lowering import Graph, interpret, parse_graph, print_graph, verify
from plait_scheduler import (
    Attend,
    Kernel,
    Mix,
    ProgramError,
    Schedule,
    SchedulerOptions,
    kernel_work,
    load_python,
    parse_program,
    plan,
    print_program,
    render_python,
    verify_kernel,
)

WEIGHT = "exp(sub({score}, sums[i0, i1, i2]))"
CAUSAL = 'where(ge(index(i2), index(i3)), mul(s[i0*3 + i1, i2, i3], f32(0.5)), f32("-inf"))'
DOCUMENTS = 'where(eq(of[i2], of[i3]), s[i0*3 + i1, i2, i3], f32("-inf"))'
SLOPE = (
    "mul(mul(w[i0, i1, i2, i3], sub(to(d[i0*3 + i1, i2, i3], f32), delta[i0, i1, i2])), f32(0.5))"
)


def gradients(
    score: str = CAUSAL,
    *,
    returned: str = "dq, dk, dv",
    rows: int = 20,
    depth: int = 8,
    between: str = "",
    left: str = "x",
    keys: int = 30,
    behind: str = "",
) -> Graph:
    """Those of queries, keys and values, as they are differentiated."""
    loops = f"i0: 2, i1: 3, i2: {rows}, i3: {keys}"
    pairs = rows * keys
    turned = f"[6, {keys}, {rows}], [{pairs}, 1, {keys}], 0"
    graph = parse_graph(f"""graph main()
  input q: f32[6, {rows}, {depth}] on cpu
  input k: f32[6, {keys}, {depth}] on cpu
  input v: bf16[6, {keys}, 5] on cpu
  input g: bf16[6, {rows}, 5] on cpu
  input sums: f32[2, 3, {rows}] on cpu
  input delta: f32[2, 3, {rows}] on cpu
  input of: i64[{max(rows, keys)}] on cpu
  define s: f32[6, {rows}, {keys}] on cpu
    call out aten::bmm.out(q, k.view([6, {depth}, {keys}], [{keys * depth}, 1, {depth}], 0))
  define d: bf16[6, {rows}, {keys}] on cpu
    call out aten::bmm.out(g, v.view([6, 5, {keys}], [{keys * 5}, 1, 5], 0))
  define w: f32[2, 3, {rows}, {keys}] on cpu
    for {loops} = {WEIGHT.format(score=score)}
  define p: bf16[2, 3, {rows}, {keys}] on cpu
    for {loops} = to(w[i0, i1, i2, i3], bf16)
  define dv: bf16[6, {keys}, 5] on cpu
    call out aten::bmm.out(p.view({turned}), g)
{between}  define x: f32[2, 3, {rows}, {keys}] on cpu
    for {loops} = {SLOPE}
  define dk: f32[6, {keys}, {depth}] on cpu
    call out aten::bmm.out({left}.view({turned}), q)
  define dq: f32[6, {rows}, {depth}] on cpu
    call out aten::bmm.out(x.view([6, {rows}, {keys}], [{pairs}, {keys}, 1], 0), k)
{behind}  return {returned}
""")
    verify(graph)
    return graph


def run(graph: Graph, **options: object) -> Schedule:
    """Schedule and run it as Python; the results are those of the graph as it was."""
    chosen = {"fuse_mixtures": True, "attention_operands": True, "attention_spans": True} | options
    schedule = plan(graph, options=SchedulerOptions(**chosen))
    assert parse_program(print_program(schedule.program)) == schedule.program
    draw = torch.Generator().manual_seed(0)
    kinds = {"f32": torch.float32, "bf16": torch.bfloat16}
    sizes = [[n.as_int() for n in b.layout.size] for b in graph.inputs]
    given = [
        torch.randn(size, generator=draw).to(kinds[str(b.dtype)])
        if b.dtype.is_float
        else torch.arange(*size) // 7
        for b, size in zip(graph.inputs, sizes, strict=True)
    ]
    found = load_python(render_python(schedule.program))(given)
    for got, meant in zip(found, interpret(graph, given), strict=True):
        # what is not stored is not rounded
        scale = float(meant.abs().max())
        torch.testing.assert_close(got / scale, meant / scale, rtol=2e-2, atol=2e-2)
    return schedule


def mixes(schedule: Schedule) -> list[Mix]:
    kernels = schedule.program.kernels
    return [s for kernel in kernels for s in kernel.statements if isinstance(s, Mix)]


@pytest.mark.parametrize("score", [CAUSAL, DOCUMENTS, "s[i0*3 + i1, i2, i3]"])
def test_gradients_are_two_kernels(score: str):
    both, queries = mixes(run(gradients(score)))
    assert (len(both.made), len(both.factors)) == (2, 2)
    assert (len(queries.made), len(queries.factors)) == (1, 2)


def test_what_comes_between_them_follows():
    between = (
        "  define y: bf16[6, 30, 5] on cpu\n    for i0: 6, i1: 30, i2: 5 = neg(dv[i0, i1, i2])\n"
    )
    both, _ = mixes(run(gradients(between=between, returned="dq, dk, y")))
    assert len(both.made) == 2


def test_data_tells_which_rows_to_read():
    graph = gradients(DOCUMENTS, rows=260, keys=300)
    assert [len(each.spans) for each in mixes(run(graph))] == [3, 3]
    assert [len(each.spans) for each in mixes(run(graph, attention_spans=False))] == [0, 0]


SUMMED = {
    "rows": "  define rows: f32[2, 3, 20, 1] on cpu\n"
    "    reduce sum for i0: 2, i1: 3, i2: 20, i3: 1 over r0: 30 = x[i0, i1, i2, r0]\n",
    "columns": "  define columns: f32[2, 3, 1, 30] on cpu\n"
    "    reduce sum for i0: 2, i1: 3, i2: 1, i3: 30 over r0: 20 = "
    "mul(x[i0, i1, r0, i3], f32(2.0))\n",
    "table": "  define zeros: f32[3, 50] on cpu\n    for i0: 3, i1: 50 = f32(0.0)\n"
    "  define far: i64[20, 30] on cpu\n"
    "    for i0: 20, i1: 30 = add(sub(index(i1), index(i0)), i64(20))\n"
    "  define table: f32[3, 50] on cpu\n    scatter add for w0: 2, w1: 3, w2: 20, w3: 30 at "
    "zeros[checked(index(w1), 3), checked(far[w2, w3], 50)] = x[w0, w1, w2, w3]\n",
    "places": "  define none: f32[30] on cpu\n    for i0: 30 = f32(0.0)\n"
    "  define places: f32[30] on cpu\n    scatter add for w0: 2, w1: 3, w2: 20, w3: 30 at "
    "none[checked(of[w3], 30)] = x[w0, w1, w2, w3]\n",
}
"""Sums over pairs, by the names of their buffers."""


@pytest.mark.parametrize("names", [[each] for each in SUMMED] + [list(SUMMED)], ids="-".join)
def test_pairs_are_summed_beside_products(names: list[str]):
    text = "".join(SUMMED[name] for name in names)
    graph = gradients(returned=f"dq, dk, dv, {', '.join(names)}", behind=text)
    schedule = run(graph)
    queries, both = sorted(mixes(schedule), key=lambda mix: len(mix.values))
    assert [len(mix.values) for mix in (both, queries)] == [2, 1]
    columns = "columns" in names
    assert both.sums == ((None,) if columns else ())
    assert len(queries.sums) == len(names) - columns
    program = print_program(schedule.program)
    assert "f32[2, 3, 20, 30]" not in program
    assert ("adding" in program) == bool(names)


@pytest.mark.parametrize(("kind", "start"), [("add", 1.0), ("assign", 0.0)])
def test_other_scatters_of_pairs_stay_as_they_are(kind: str, start: float):
    text = (
        SUMMED["table"]
        .replace("scatter add", f"scatter {kind}")
        .replace("f32(0.0)", f"f32({start})")
    )
    assert not mixes(run(gradients(returned="dq, dk, dv, table", behind=text)))


def shared_gradients(*, group: int = 3, name: str = "dk", rows: int = 20) -> Graph:
    """Those of an attention whose heads share keys and values, which are summed over them."""
    over = 3 // group
    sums = "".join(
        f"  define {one}s: f32[2, {over}, 1, 30, {width}] on cpu\n"
        f"    reduce sum for i0: 2, i1: {over}, i2: 1, i3: 30, i4: {width} over r0: {group} = "
        f"to({one}[i0*3 + i1*{group} + r0, i3, i4], f32)\n"
        f"  define {one}n: bf16[2, {over}, 30, {width}] on cpu\n"
        f"    for i0: 2, i1: {over}, i2: 30, i3: {width} = to({one}s[i0, i1, 0, i2, i3], bf16)\n"
        for one, width in (("dk", 8), ("dv", 5))
    )
    return gradients(behind=sums, returned=f"dq, {name}n, dvn", rows=rows)


def test_rows_that_heads_share_are_summed_over_them():
    schedule = run(shared_gradients(), min_parallel_points=2)
    kernels = [k for k in schedule.program.kernels if _is_mixture(k)]
    (shared,) = (kernel for kernel in kernels if len(kernel.inner) == 2)
    assert len(kernels) == 2
    (mix,) = shared.statements
    assert isinstance(mix, Mix)
    assert [str(p.dtype) for p in shared.params if p.name in mix.made] == ["bf16"] * 2
    assert not {"dk", "dv", "dks", "dvs"} & {b.name for b in schedule.program.buffers}


def test_few_programs_sum_over_heads_afterwards():
    schedule = run(shared_gradients(), min_parallel_points=3)
    assert all(len(k.inner) == 1 for k in schedule.program.kernels if _is_mixture(k))


def test_what_else_reads_rows_of_each_head_keeps_them():
    graph = shared_gradients()
    graph = parse_graph(print_graph(graph).replace("return dq", "return dk, dq"))
    schedule = run(graph, min_parallel_points=1)
    assert all(len(k.inner) == 1 for k in schedule.program.kernels if _is_mixture(k))


@pytest.mark.parametrize(
    ("change", "options", "reason"),
    [
        ({"returned": "dq, dk, dv, x"}, {}, "something else reads s"),
        ({"returned": "dq, dk, dv, s"}, {}, "something else reads s"),
        ({"rows": 4}, {}, "there are few rows"),
        ({"depth": 40}, {"max_head_size": 32}, "more than 32 elements"),
        ({}, {"fuse_mixtures": False}, None),
    ],
)
def test_others_stay_products(change: dict, options: dict, reason: str | None):
    schedule = run(gradients(**change), **options)
    assert not mixes(schedule)
    refused = [d.reason for d in schedule.decisions if not d.accepted]
    assert reason is None or any(reason in each for each in refused)


def test_what_they_move_and_compute_is_counted():
    schedule = run(gradients())
    works = [
        kernel_work(kernel)
        for kernel in schedule.program.kernels
        if isinstance(kernel.statements[0], Mix)
    ]
    pairs = 6 * 20 * 30
    assert works[0].operations > pairs * 2 * (8 + 5 + 8 + 5)
    assert works[1].operations > pairs * 2 * (8 + 5 + 8)
    assert works[1].bytes_written == 6 * 20 * 8 * 4


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("write f32[6, 30, 8]", "write f32[6, 29, 8]", "is a row for each"),
        ("inner r0: 20", "inner r0: 19", "an element of each product for each pair"),
        ("p2: read bf16", "p2: write bf16", "is only read"),
    ],
)
def test_broken_kernels_are_refused(old: str, new: str, reason: str):
    text = print_program(run(gradients()).program)
    assert old in text
    kernel = next(k for k in parse_program(text.replace(old, new)).kernels if _is_mixture(k))
    with pytest.raises(ProgramError, match=reason):
        verify_kernel(kernel)


def _is_mixture(kernel: Kernel) -> bool:
    return isinstance(kernel.statements[0], Mix)


@pytest.mark.parametrize(("beside", "count"), [("sums", 2), ("top, l", 3)])
def test_attention_gives_the_sums_of_its_rows(beside: str, count: int):
    loops, ends = "i0: 2, i1: 3, i2: 20", "[2, 3, 20, 1]"
    graph = parse_graph(f"""graph main()
  input q: f32[6, 20, 8] on cpu
  input k: f32[6, 30, 8] on cpu
  define s: f32[6, 20, 30] on cpu
    call out aten::bmm.out(q, k.view([6, 8, 30], [240, 1, 8], 0))
  define f: f32[2, 3, 20, 30] on cpu
    for {loops}, i3: 30 = {CAUSAL}
  define top: f32{ends} on cpu
    reduce max for {loops}, i3: 1 over r0: 30 = f[i0, i1, i2, r0]
  define e: f32[2, 3, 20, 30] on cpu
    for {loops}, i3: 30 = exp(sub(f[i0, i1, i2, i3], top[i0, i1, i2, 0]))
  define total: f32{ends} on cpu
    reduce sum for {loops}, i3: 1 over r0: 30 = e[i0, i1, i2, r0]
  define w: f32[2, 3, 20, 30] on cpu
    for {loops}, i3: 30 = div(e[i0, i1, i2, i3], total[i0, i1, i2, 0])
  define o: f32[6, 20, 8] on cpu
    call out aten::bmm.out(w.view([6, 20, 30], [600, 30, 1], 0), k)
  define l: f32{ends} on cpu
    for {loops}, i3: 1 = log(total[i0, i1, i2, 0])
  define sums: f32{ends} on cpu
    for {loops}, i3: 1 = add(l[i0, i1, i2, 0], top[i0, i1, i2, 0])
  return o, {beside}
""")
    verify(graph)
    schedule = run(graph, attention_sums=True)
    ((attend,),) = (kernel.statements for kernel in schedule.program.kernels)
    assert isinstance(attend, Attend)
    assert len(attend.made) == count
    assert not any(
        isinstance(statement, Attend)
        for kernel in run(graph).program.kernels
        for statement in kernel.statements
    )


NARROW = """graph main()
  input q: bf16[6, 20, 8] on cpu
  input k: bf16[6, 30, 8] on cpu
  define a: f32[6, 20, 8] on cpu
    for i0: 6, i1: 20, i2: 8 = to(q[i0, i1, i2], f32)
  define b: f32[6, 30, 8] on cpu
    for i0: 6, i1: 30, i2: 8 = to(k[i0, i1, i2], f32)
  define s: f32[6, 20, 30] on cpu
    call out aten::bmm.out(a, b.view([6, 8, 30], [240, 1, 8], 0))
  define w: f32[6, 20, 30] on cpu
    for i0: 6, i1: 20, i2: 30 = exp(s[i0, i1, i2])
  define x: f32[6, 20, 8] on cpu
    call out aten::bmm.out(w, b)
  define y: bf16[2, 3, 20, 8] on cpu
    for i0: 2, i1: 3, i2: 20, i3: 8 = to(x[i0*3 + i1, i2, i3], bf16)
  return {returned}
"""


def test_weights_are_rounded_only_where_their_sums_are():
    (rounded,) = mixes(run(parse_graph(NARROW.format(returned="y"))))
    (exact,) = mixes(run(parse_graph(NARROW.format(returned="x, y"))))
    kernels = {}
    for name, returned in (("rounded", "y"), ("exact", "x, y")):
        schedule = run(parse_graph(NARROW.format(returned=returned)))
        kernels[name] = next(k for k in schedule.program.kernels if _is_mixture(k))
    assert len(run(parse_graph(NARROW.format(returned="y"))).program.kernels) == 1
    types = {
        name: {p.name: str(p.dtype) for p in kernel.params} for name, kernel in kernels.items()
    }
    assert types["rounded"][rounded.values[0].buffer] == "bf16"
    assert types["rounded"][rounded.made[0]] == "bf16"
    assert types["exact"][exact.values[0].buffer] == "f32"
    assert types["exact"][exact.made[0]] == "f32"


CROSSED = """graph main()
  input q: f32[6, 32, 8] on cpu
  input k: f32[6, 32, 8] on cpu
  input o: f32[6, 32, 8] on cpu
  input p: f32[6, 32, 8] on cpu
  input v: f32[6, 32, 8] on cpu
  define s: f32[6, 32, 32] on cpu
    call out aten::bmm.out(q, k.view([6, 8, 32], [256, 1, 8], 0))
  define w: f32[6, 32, 32] on cpu
    for i0: 6, i1: 32, i2: 32 = exp(s[i0, i1, i2])
  define t: f32[6, 32, 32] on cpu
    call out aten::bmm.out(o, p.view([6, 8, 32], [256, 1, 8], 0))
  define u: f32[6, 32, 32] on cpu
    for i0: 6, i1: 32, i2: 32 = sigmoid(t[i0, i1, i2])
  define a: f32[6, 32, 8] on cpu
    call out aten::bmm.out(w, v)
  define b: f32[6, 32, 8] on cpu
    call out aten::bmm.out(u, a)
  define c: f32[6, 32, 8] on cpu
    call out aten::bmm.out(u, v)
  define d: f32[6, 32, 8] on cpu
    call out aten::bmm.out(w, c)
  return b, d
"""


def test_mixtures_that_need_one_another_are_not_merged() -> None:
    graph = parse_graph(CROSSED)
    verify(graph)
    schedule = plan(graph, options=SchedulerOptions.for_gpu())
    inputs = [torch.randn(6, 32, 8, generator=torch.Generator().manual_seed(n)) for n in range(5)]
    got = load_python(render_python(schedule.program))(inputs)
    for ours, theirs in zip(got, interpret(graph, inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)
