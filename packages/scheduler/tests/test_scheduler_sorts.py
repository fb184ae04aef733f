"""Sorts in kernels: fused with what is around them, the least of a row, as text and Python."""

from __future__ import annotations

import pytest
import torch
from scheduler_checks import program_of

from plait_ir_lowering import parse_graph
from plait_scheduler import (
    ProgramError,
    ProgramSyntaxError,
    Reduce,
    Sort,
    Store,
    kernel_work,
    load_python,
    parse_kernel,
    plan,
    print_kernel,
    render_python,
    verify_kernel,
)


def sorted_rows(axis: int, *, rows: int = 6, columns: int = 9) -> str:
    shape, loops = f"[{rows}, {columns}]", f"i0: {rows}, i1: {columns}"
    return f"""graph main()
  input x: i32{shape} on cpu
  define e: i32{shape} on cpu
    for {loops} = mul(x[i0, i1], i32(3))
  define s: i32{shape} on cpu
    sort i{axis} of i32 for {loops} give %sorted0 = e[i0, i1]
  define t: i64{shape} on cpu
    sort i{axis} of i32 for {loops} give to(%sorted0, i64) = e[i0, i1]
  define y: i32{shape} on cpu
    for {loops} = sub(s[i0, i1], x[i0, i1])
  return y, t
"""


@pytest.mark.parametrize("axis", [0, 1])
def test_what_is_around_a_sort_is_in_its_kernel_and_what_two_results_need_is_sorted_once(axis):
    x = torch.randint(-50, 50, (6, 9), dtype=torch.int32)
    (kernel,) = program_of(sorted_rows(axis), x, kernels=1).kernels
    assert kernel.inner[0].extent.as_int() == x.shape[axis]
    assert sum(isinstance(statement, Sort) for statement in kernel.statements) == 1
    assert kernel.name.startswith("sort_")


def test_a_sort_of_one_element_is_that_element():
    x = torch.randint(0, 9, (6, 1), dtype=torch.int32)
    program = program_of(sorted_rows(1, columns=1), x, kernels=1)
    assert not any(isinstance(s, Sort) for s in program.kernels[0].statements)


def test_sorts_without_elements():
    program_of(sorted_rows(1, columns=0), torch.zeros(6, 0, dtype=torch.int32), kernels=0)
    program_of(sorted_rows(1, rows=0), torch.zeros(0, 9, dtype=torch.int32), kernels=0)


def test_what_reads_a_sort_at_other_points_waits_for_it():
    text = sorted_rows(1).replace("= sub(s[i0, i1]", "= sub(s[i0, -i1 + 8]")
    program_of(text, torch.randint(-50, 50, (6, 9), dtype=torch.int32), kernels=2)


def test_running_sums_of_what_is_sorted_share_its_kernel():
    text = sorted_rows(1).replace(
        "    for i0: 6, i1: 9 = sub(s[i0, i1], x[i0, i1])",
        "    scan i1 carry i32 for i0: 6, i1: 9 join add(%a0, %b0) give %a0 = s[i0, i1]",
    )
    program_of(text, torch.randint(-50, 50, (6, 9), dtype=torch.int32), kernels=1)


def test_sorts_keep_their_order_where_others_run_over_reordered_rows():
    text = """graph main()
  input x: i32[4, 3, 5] on cpu
  define s: i32[4] on cpu
    reduce sum for i0: 4 over r0: 5, r1: 3 = x[i0, r1, r0]
  define c: i32[4, 15] on cpu
    sort i1 of i32 for i0: 4, i1: 15 give %sorted0 = x[i0, i1 // 5, i1 % 5]
  return s, c
"""
    x = torch.randint(-50, 50, (4, 3, 5), dtype=torch.int32)
    found = load_python(render_python(plan(parse_graph(text)).program))([x])
    assert torch.equal(found[1], x.reshape(4, 15).sort(1).values)
    assert torch.equal(found[0], x.sum((1, 2), dtype=torch.int32))


LEAST = """graph main()
  input x: i32[6, 8] on cpu
  define m: i32[6] on cpu
    reduce max for i0: 6 over r0: 8 = x[i0, r0]
  define d: i32[6, 8] on cpu
    for i0: 6, i1: 8 = sub(x[i0, i1], m[i0])
  define s: i32[6, 3] on cpu
    sort i1 of i32 for i0: 6, i1: 8 give %sorted0 = d[i0, i1]
  define t: i64[6, 3] on cpu
    sort i1 of i32 for i0: 6, i1: 8 give to(%sorted0, i64) = d[i0, i1]
  define y: i32[6, 8] on cpu
    for i0: 6, i1: 8 = masked(lt(index(i1), i64(3)), s[i0, i1], i32(7))
  return s, t, y
"""


def test_the_least_of_rows_take_in_what_computes_them():
    x = torch.randint(-50, 50, (6, 8), dtype=torch.int32)
    (kernel,) = program_of(LEAST, x, kernels=1).kernels
    (sort,) = [s for s in kernel.statements if isinstance(s, Sort)]
    assert sort.first == 3
    assert any(isinstance(statement, Reduce) for statement in kernel.statements)
    assert [s.first for s in kernel.statements if isinstance(s, Store)] == [3, 3, None]
    assert kernel.name.startswith("topk_")
    assert kernel_work(kernel).bytes_written == 6 * (3 * 4 + 3 * 8 + 8 * 4)


def followed(*definitions: str, results: str) -> str:
    """The least of rows, and what is computed of them."""
    own = "".join(f"  define {each}\n" for each in definitions)
    return LEAST.replace("  return s, t, y", f"{own}  return s, t, {results}")


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
def test_what_follows_the_least_is_in_their_kernel(kind):
    text = followed(
        f"z: i32[6] on cpu\n    reduce {kind} for i0: 6 over r0: 3 = s[i0, r0]",
        "w: i32[6, 3] on cpu\n    for i0: 6, i1: 3 = sub(s[i0, i1], z[i0])",
        "v: i32[6] on cpu\n    for i0: 6 = neg(z[i0])",
        results="w, v, y",
    )
    x = torch.randint(-50, 50, (6, 8), dtype=torch.int32)
    (kernel,) = program_of(text, x, kernels=1).kernels
    firsts = [s.first for s in kernel.statements if isinstance(s, Store)]
    assert sorted(firsts, key=str) == [3, 3, 3, None, None]


def test_the_least_in_one_row_are_followed_too():
    text = followed(
        "f: i32[18] on cpu\n    for i0: 18 = add(s[i0 // 3, i0 % 3], i32(1))", results="f"
    )
    program_of(text, torch.randint(-50, 50, (6, 8), dtype=torch.int32), kernels=1)


WAITING = {
    "what it reads along the row": (
        "w: i32[6, 3] on cpu\n    for i0: 6, i1: 3 = sub(s[i0, i1], b[i1])",
        2,
    ),
    "what it reads at computed places": (
        "w: i32[6, 3] on cpu\n    for i0: 6, i1: 3 = b[checked(to(abs(t[i0, i1]), i64), 300)]",
        2,
    ),
    "what it reads at other places": (
        "w: i32[6, 3] on cpu\n    for i0: 6, i1: 3 = neg(s[i0, -i1 + 2])",
        2,
    ),
    "a scan": (
        "w: i32[6, 3] on cpu\n    scan i1 carry i32 for i0: 6, i1: 3 join add(%a0, %b0) give %a0"
        " = s[i0, i1]",
        2,
    ),
    "a sort": (
        "w: i32[6, 3] on cpu\n    sort i1 of i32 for i0: 6, i1: 3 give %sorted0 = neg(s[i0, i1])",
        2,
    ),
    "a position": ("w: i64[6] on cpu\n    reduce argmax for i0: 6 over r0: 3 = abs(s[i0, r0])", 2),
    "nothing": ("w: i32[6, 3] on cpu\n    for i0: 6, i1: 3 = sub(s[i0, i1], b[i0])", 1),
}


@pytest.mark.parametrize("why", WAITING)
def test_what_waits_for_the_least(why):
    definition, kernels = WAITING[why]
    text = followed(definition, results="w").replace(
        "  input x", "  input b: i32[300] on cpu\n  input x"
    )
    b = torch.randint(-50, 50, (300,), dtype=torch.int32)
    program_of(text, b, torch.randint(-50, 50, (6, 8), dtype=torch.int32), kernels=kernels)


def test_the_least_by_several_counts():
    text = followed(
        "p: i32[6, 2] on cpu\n    sort i1 of i32 for i0: 6, i1: 8 give %sorted0 = d[i0, i1]",
        "q: i32[6] on cpu\n    reduce sum for i0: 6 over r0: 2 = p[i0, r0]",
        "z: i32[6] on cpu\n    reduce sum for i0: 6 over r0: 3 = s[i0, r0]",
        "w: i32[6, 2] on cpu\n    for i0: 6, i1: 2 = sub(mul(p[i0, i1], q[i0]), z[i0])",
        results="w",
    )
    program_of(text, torch.randint(-50, 50, (6, 8), dtype=torch.int32), kernels=1)


def test_one_is_chosen_along_rows_that_lie_in_pieces():
    text = """graph main()
  input x: i32[4, 3, 5] on cpu
  define c: i32[4, 1] on cpu
    sort i1 of i32 for i0: 4, i1: 15 give %sorted0 = x[i0, i1 // 5, i1 % 5]
  return c
"""
    program_of(text, torch.randint(-50, 50, (4, 3, 5), dtype=torch.int32), kernels=1)


def test_keys_of_two_words_are_sorted_once_and_what_selects_from_them_follows():
    text = """graph main()
  input x: i64[6, 8] on cpu
  define s: i64[6, 3] on cpu
    sort i1 of i64, i32 for i0: 6, i1: 8 give %sorted0 = pack(x[i0, i1], to(index(i1), i32))
  define t: i32[6, 3] on cpu
    sort i1 of i64, i32 for i0: 6, i1: 8 give %sorted1 = pack(x[i0, i1], to(index(i1), i32))
  define a: i64[6] on cpu
    reduce min for i0: 6 over r0: 3 = where(eq(index(r0), i64(2)), s[i0, r0], i64(9))
  define b: i32[6] on cpu
    reduce min for i0: 6 over r0: 3 = where(eq(index(r0), i64(2)), t[i0, r0], i32(9))
  define y: i64[6] on cpu
    for i0: 6 = add(a[i0], to(b[i0], i64))
  return y
"""
    x = torch.randint(-2, 3, (6, 8))
    program = program_of(text, x, kernels=1)
    (kernel,) = program.kernels
    (sort,) = [s for s in kernel.statements if isinstance(s, Sort)]
    assert (len(sort.names), sort.first) == (2, 3)
    assert [s.param for s in kernel.statements if isinstance(s, Store)] == ["p1"]
    (found,) = load_python(render_python(program))([x])
    values, positions = x.sort(dim=1, stable=True)
    assert torch.equal(found, values[:, 2] + positions[:, 2])


def test_a_sort_of_one_key_of_two_words_is_that_key():
    text = """graph main()
  input x: i64[6, 1] on cpu
  define s: i64[6, 1] on cpu
    sort i1 of i64, i32 for i0: 6, i1: 1 give add(%sorted0, to(%sorted1, i64)) = pack(x[i0, i1], \
i32(5))
  return s
"""
    x = torch.randint(-2, 3, (6, 1))
    program = program_of(text, x, kernels=1)
    assert not any(isinstance(s, Sort) for s in program.kernels[0].statements)
    assert torch.equal(load_python(render_python(program))([x])[0], x + 5)


KERNEL = """kernel k(p0: read f32[6, 9], p1: write i64[6, 4])
  for i0: 6 inner r0: 9
    sort t0 = first 4 to(mul(p0[i0, r0], f32(8.0)), i64)
    inner first 4 store p1[i0, r0] = %t0"""


def test_kernels_with_sorts_print_and_read_back():
    whole = KERNEL.replace("first 4 ", "").replace("[6, 4]", "[6, 9]")
    value = "to(mul(p0[i0, r0], f32(8.0)), i64)"
    pairs = KERNEL.replace(value, f"pack({value}, i32(3))").replace("sort t0", "sort t0, t1")
    for text in (KERNEL, whole, pairs):
        kernel = parse_kernel(text)
        verify_kernel(kernel)
        assert print_kernel(kernel) == text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("inner first 4 store", "inner store"),
        ("inner first 4 store", "inner first 3 store"),
        ("inner first 4 store", "outer first 4 store"),
        ("p1[i0, r0]", "p1[i0, r0 + 1]"),
        ("inner r0: 9", "inner r1: 9"),
        ("= first 4", "= first 10"),
        ("to(mul(p0[i0, r0], f32(8.0)), i64)", "mul(p0[i0, r0], f32(8.0))"),
        ("sort t0", "sort p0"),
        ("sort t0", "sort t0, t1"),
        ("sort t0", "sort t0, t0"),
        ("to(mul(p0[i0, r0], f32(8.0)), i64)", "pack(i64(1), i32(2))"),
        ("inner first 4 store p1[i0, r0] = %t0", "outer store p1[i0, 0] = %t0"),
    ],
)
def test_broken_sorts_are_refused(old, new):
    with pytest.raises((ProgramError, ProgramSyntaxError)):
        verify_kernel(parse_kernel(KERNEL.replace(old, new)))
