"""Products of matrices that the tests share."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from plait_ir_lowering import lower
from plait_scheduler import (
    Kernel,
    Program,
    Schedule,
    SchedulerOptions,
    parse_kernel,
    plan,
    print_kernel,
)

GELU = "mul(mul($0, f32(0.5)), add(f32(1.0), erf(mul($0, f32(0.7071067811865476)))))"


def product(
    rows: int,
    columns: int,
    terms: int,
    dtype: str = "bf16",
    *,
    turned: str = "",
    batches: int = 0,
    finish: str = "%t0",
    added: str = "",
    out: str = "",
) -> Kernel:
    """A kernel that multiplies `[rows, terms]` and `[terms, columns]`.

    `turned` names the factors ("left", "right") whose elements lie along their columns. `finish` is
    what is stored, over `%t0` and, with `added`, what `p3` holds, a tensor of that shape; as `out`,
    or as the factors are and integers as i32.
    """
    lead = f"{batches}, " if batches else ""
    at = "i0, " if batches else ""
    i, j = ("i1", "i2") if batches else ("i0", "i1")

    def given(name: str, first: int, second: int) -> str:
        strides = f"{first * second}, " if batches else ""
        strides += f"1, {first}" if name in turned else f"{second}, 1"
        return f"{dtype}[{lead}{first}, {second}] stride [{strides}] offset 0"

    def wide(load: str) -> str:
        return load if dtype == "f32" else f"to({load}, {'i32' if dtype == 'i8' else 'f32'})"

    out = out or ("i32" if dtype == "i8" else dtype)
    value = finish if out in ("f32", "i32") else f"to({finish}, {out})"
    outer = ", ".join([*([f"i0: {batches}"] if batches else []), f"{i}: {rows}", f"{j}: {columns}"])
    more = f", p3: read {dtype}{added}" if added else ""
    return parse_kernel(f"""\
kernel product(p0: read {given("left", rows, terms)}, p1: read {given("right", terms, columns)}, \
p2: write {out}[{lead}{rows}, {columns}]{more})
  for {outer} inner r0: {terms}
    reduce t0 = sum mul({wide(f"p0[{at}{i}, r0]")}, {wide(f"p1[{at}r0, {j}]")})
    outer store p2[{at}{i}, {j}] = {value}
""")


def with_bias_and_gelu(rows: int, columns: int, terms: int, dtype: str = "bf16") -> Kernel:
    bias = "to(p3[i1], f32)" if dtype != "f32" else "p3[i1]"
    wide = "{}" if dtype == "f32" else "to({}, f32)"
    left, right = wide.format("p0[i0, r0]"), wide.format("p1[i1, r0]")
    value = GELU if dtype == "f32" else f"to({GELU}, {dtype})"
    return parse_kernel(f"""\
kernel linear_gelu(p0: read {dtype}[{rows}, {terms}], p1: read {dtype}[{columns}, {terms}], \
p2: write {dtype}[{rows}, {columns}], p3: read {dtype}[{columns}])
  for i0: {rows}, i1: {columns} inner r0: {terms}
    reduce t0 = sum mul({left}, {right})
      $0 = add(%t0, {bias})
    outer store p2[i0, i1] = {value}
""")


def swiglu(rows: int, columns: int, terms: int) -> Kernel:
    """Two products of the same rows."""
    shape = f"bf16[{columns}, {terms}]"
    return parse_kernel(f"""\
kernel swiglu(p0: read bf16[{rows}, {terms}], p1: read {shape}, p2: read {shape}, \
p3: write bf16[{rows}, {columns}])
  for i0: {rows}, i1: {columns} inner r0: {terms}
    inner t0 = to(p0[i0, r0], f32)
    reduce t1 = sum mul(%t0, to(p1[i1, r0], f32))
    reduce t2 = sum mul(%t0, to(p2[i1, r0], f32))
    outer store p3[i0, i1] = to(mul(div(%t1, add(f32(1.0), exp(neg(%t1)))), %t2), bf16)
""")


def scaled(
    rows: int, columns: int, terms: int, dtypes: str = "f8e4m3fn", out: str = "bf16"
) -> Kernel:
    """Floats of 8 bits with a scale for each row and column."""
    left, right = (dtypes.split() * 2)[:2]
    value = "mul(mul(%t0, p2[i0]), p3[i1])"
    return parse_kernel(f"""\
kernel scaled(p0: read {left}[{rows}, {terms}], p1: read {right}[{columns}, {terms}], \
p2: read f32[{rows}], p3: read f32[{columns}], p4: write {out}[{rows}, {columns}])
  for i0: {rows}, i1: {columns} inner r0: {terms}
    reduce t0 = sum mul(to(p0[i0, r0], f32), to(p1[i1, r0], f32))
    outer store p4[i0, i1] = {value if out == "f32" else f"to({value}, {out})"}
""")


def scaled_in_blocks(
    rows: int, columns: int, terms: int, dtypes: str = "f8e4m3fn", out: str = "bf16"
) -> Kernel:
    """Floats of 8 bits with a scale for 128 terms of a row, and for those of 128 columns."""
    left, right = (dtypes.split() * 2)[:2]
    blocks, wide = -(-terms // 128), -(-columns // 128)
    value = "%t0" if out == "f32" else f"to(%t0, {out})"
    return parse_kernel(f"""\
kernel scaled(p0: read {left}[{rows}, {terms}], p1: read {right}[{columns}, {terms}], \
p2: read f32[{rows}, {blocks}] stride [1, {rows}] offset 0, p3: read f32[{wide}, {blocks}], \
p4: write {out}[{rows}, {columns}])
  for i0: {rows}, i1: {columns} inner r0: {terms}
    reduce t0 = sum mul(mul(to(p0[i0, r0], f32), p2[i0, r0 // 128]), \
mul(to(p1[i1, r0], f32), p3[i1 // 128, r0 // 128]))
    outer store p4[i0, i1] = {value}
""")


def search(groups: int) -> tuple[list[str], str]:
    """Lines that find the group of `i0` by where groups end, in `p2`; and what names it."""
    left, lines = groups, list[str]()
    while left > 1:
        half, found = left // 2, f"%t{len(lines) - 1}"
        place = f"add({found}, i64({half - 1}))" if half > 1 else found
        end = f"p2[{place if lines else half - 1}]"
        step = f"where(le({end}, to(index(i0), i32)), i64({half}), i64(0))"
        lines.append(f"    outer t{len(lines)} = {f'add({found}, {step})' if lines else step}")
        left -= half
    return lines, f"%t{len(lines) - 1}"


def grouped(
    rows: int, columns: int, terms: int, groups: int, *, columns_last: bool = False
) -> Kernel:
    """Rows in groups, each of which a matrix of its own multiplies; `p2` tells where they end."""
    shape = f"{groups}, {columns}, {terms}"
    if columns_last:
        shape += f"] stride [{terms * columns}, 1, {columns}] offset 0"
    lines, group = search(groups)
    found, total = "\n".join(lines), f"t{len(lines)}"
    return parse_kernel(f"""\
kernel grouped(p0: read bf16[{rows}, {terms}], p1: read bf16[{shape}{"" if columns_last else "]"}, \
p2: read i32[{groups}], p3: write f32[{rows}, {columns}])
  for i0: {rows}, i1: {columns} inner r0: {terms}
{found}
    reduce {total} = sum mul(to(p0[i0, r0], f32), to(p1[{group}, i1, r0], f32))
    outer store p3[i0, i1] = %{total}
""")


def grouped_of_any_size(groups: int) -> Kernel:
    """As `grouped`, of sizes that are known when it is launched, terms in multiples of 8."""
    text = print_kernel(grouped(999, 777, 555, groups))
    for was, other in (("999", "s0"), ("777", "s1"), ("555", "s2")):
        text = text.replace(was, other)
    head, *lines = text.splitlines()
    return parse_kernel("\n".join([f"{head} sizes(s0 >= 2, s1 >= 2, s2 >= 8 step 8)", *lines]))


def grouped_columns(rows: int, columns: int, terms: int, groups: int) -> Kernel:
    """As `grouped`, of columns in groups."""
    text = print_kernel(grouped(columns, rows, terms, groups))
    for was, other in (
        (f"i0: {columns}, i1: {rows}", f"i1: {rows}, i0: {columns}"),
        (f"write f32[{columns}, {rows}]", f"write f32[{rows}, {columns}]"),
        ("store p3[i0, i1]", "store p3[i1, i0]"),
    ):
        assert was in text
        text = text.replace(was, other)
    return parse_kernel(text)


def grouped_terms(
    rows: int, columns: int, terms: int, groups: int, *, turned: str = "left"
) -> Kernel:
    """Terms in groups, each of which has a result of its own: gradients of the groups' matrices.

    `turned` names the factors whose elements lie along their columns.
    """
    start = "masked(lt(i64(0), index(i0)), p2[i0 - 1], i32(0))"
    is_in = "lt(to(index(r0), i32), p2[i0])"
    if groups > 1:
        is_in = f"logical_and(le({start}, to(index(r0), i32)), {is_in})"

    def given(name: str, first: int, second: int) -> str:
        stride = f"1, {first}" if name in turned else f"{second}, 1"
        return f"bf16[{first}, {second}] stride [{stride}] offset 0"

    return parse_kernel(f"""\
kernel grouped(p0: read {given("left", rows, terms)}, p1: read {given("right", terms, columns)}, \
p2: read i32[{groups}], p3: write f32[{groups}, {rows}, {columns}])
  for i0: {groups}, i1: {rows}, i2: {columns} inner r0: {terms}
      $0 = {is_in}
    reduce t0 = sum mul(to(masked($0, p0[i1, r0], bf16(0.0)), f32), \
to(masked($0, p1[r0, i2], bf16(0.0)), f32))
    outer store p3[i0, i1, i2] = %t0
""")


def weight_of_bytes(rows: int, columns: int, terms: int) -> Kernel:
    """A weight that is unpacked block by block."""
    weight = "to(mul(to(p1[r0, i1], f32), to(p2[i1], f32)), bf16)"
    return parse_kernel(f"""\
kernel unpacked(p0: read bf16[{rows}, {terms}], p1: read i8[{terms}, {columns}], \
p2: read bf16[{columns}], p3: write bf16[{rows}, {columns}])
  for i0: {rows}, i1: {columns} inner r0: {terms}
    reduce t0 = sum mul(to(p0[i0, r0], f32), to({weight}, f32))
    outer store p3[i0, i1] = to(%t0, bf16)
""")


def program_of(function, *inputs: torch.Tensor, products: str = "*") -> Program:
    """The program of a function for a GPU, with its products as kernels; symbolic where sizes of
    the inputs are."""
    return schedule_of(function, *inputs, products=products).program


def schedule_of(function, *inputs: torch.Tensor, products: str = "*") -> Schedule:
    """The same with the scheduler's decisions."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        fakes = [
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda:0") for x in inputs
        ]
        traced = make_fx(lambda *given: _in_tuple(function(*given)))(*fakes)
    options = replace(SchedulerOptions.for_gpu(), kernel_products=products)
    return plan(lower(traced), options=options)


def _in_tuple(result) -> tuple[torch.Tensor, ...]:
    return tuple(result) if isinstance(result, tuple | list) else (result,)
