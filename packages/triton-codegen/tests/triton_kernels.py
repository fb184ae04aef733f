"""Kernels that the tests share, as text."""

from __future__ import annotations

from plait_ir_lowering import DType, Layout, Load, Local, Op, ReductionKind, Sym, Var
from plait_scheduler import Access, Domain, Kernel, Let, Param, Reduce, Store, parse_kernel

GELU = "mul(mul($0, f32(0.5)), add(f32(1.0), erf(mul($0, f32(0.7071067811865476)))))"


def softmax(rows: int, columns: int, dtype: str = "f32", out: str | None = None) -> Kernel:
    out = out or dtype
    return parse_kernel(f"""\
kernel softmax(p0: read {dtype}[{rows}, {columns}], p1: write {out}[{rows}, {columns}])
  for i0: {rows} inner r0: {columns}
    inner t0 = {_f32("p0[i0, r0]", dtype)}
    reduce t1 = max %t0
    inner t2 = exp(sub(%t0, %t1))
    reduce t3 = sum %t2
    inner store p1[i0, r0] = {_narrow("div(%t2, %t3)", out)}
""")


def layer_norm(rows: int, columns: int, dtype: str = "f32", softmax: bool = False) -> Kernel:
    """LayerNorm with weight and bias; `softmax` of the result where asked for."""
    shape = f"{dtype}[{rows}, {columns}]"
    value = "add(mul(mul(sub(%t0, %t2), %t5), " + (
        f"{_f32('p1[r0]', dtype)}), {_f32('p2[r0]', dtype)})"
    )
    tail = f"""    inner store p3[i0, r0] = {_narrow(value, dtype)}
"""
    if softmax:
        tail = f"""    inner t6 = {value}
    reduce t7 = max %t6
    inner t8 = exp(sub(%t6, %t7))
    reduce t9 = sum %t8
    inner store p3[i0, r0] = {_narrow("div(%t8, %t9)", dtype)}
"""
    return parse_kernel(f"""\
kernel layer_norm(p0: read {shape}, p1: read {dtype}[{columns}], p2: read {dtype}[{columns}], \
p3: write {shape})
  for i0: {rows} inner r0: {columns}
    inner t0 = {_f32("p0[i0, r0]", dtype)}
    reduce t1 = sum %t0
    outer t2 = div(%t1, f32({float(columns)}))
    reduce t3 = sum square(sub(%t0, %t2))
    outer t5 = rsqrt(add(div(%t3, f32({float(columns)})), f32(1e-05)))
{tail}""")


def bias_gelu_residual(rows: int, columns: int, dtype: str = "f32") -> Kernel:
    shape = f"{dtype}[{rows}, {columns}]"
    return parse_kernel(f"""\
kernel bias_gelu(p0: read {shape}, p1: read {dtype}[{columns}], p2: read {shape}, \
p3: write {shape})
  for i0: {rows}, i1: {columns}
      $0 = add({_f32("p0[i0, i1]", dtype)}, {_f32("p1[i1]", dtype)})
    outer store p3[i0, i1] = {_narrow(f"add({GELU}, {_f32('p2[i0, i1]', dtype)})", dtype)}
""")


def swiglu(rows: int, columns: int, dtype: str = "f32") -> Kernel:
    shape = f"{dtype}[{rows}, {columns}]"
    return parse_kernel(f"""\
kernel swiglu(p0: read {shape}, p1: read {shape}, p2: write {shape})
  for i0: {rows}, i1: {columns}
      $0 = {_f32("p0[i0, i1]", dtype)}
    outer store p2[i0, i1] = \
{_narrow(f"mul(mul($0, sigmoid($0)), {_f32('p1[i0, i1]', dtype)})", dtype)}
""")


def add_rms_norm(rows: int, columns: int, dtype: str = "f32") -> Kernel:
    """The sum of two tensors, written, and its RMSNorm with weight."""
    shape = f"{dtype}[{rows}, {columns}]"
    value = f"mul(mul(%t0, %t2), {_f32('p2[r0]', dtype)})"
    return parse_kernel(f"""\
kernel add_rms_norm(p0: read {shape}, p1: read {shape}, p2: read {dtype}[{columns}], \
p3: write {shape}, p4: write {shape})
  for i0: {rows} inner r0: {columns}
    inner t0 = add({_f32("p0[i0, r0]", dtype)}, {_f32("p1[i0, r0]", dtype)})
    inner store p3[i0, r0] = {_narrow("%t0", dtype)}
    reduce t1 = sum square(%t0)
    outer t2 = rsqrt(add(div(%t1, f32({float(columns)})), f32(1e-05)))
    inner store p4[i0, r0] = {_narrow(value, dtype)}
""")


def cross_entropy(rows: int, columns: int, dtype: str = "bf16") -> Kernel:
    """Losses, and the maxima and sums of exponentials of their rows."""
    return parse_kernel(f"""\
kernel loss(p0: read {dtype}[{rows}, {columns}], p1: read i64[{rows}], p2: write f32[{rows}], \
p3: write f32[{rows}], p4: write f32[{rows}])
  for i0: {rows} inner r0: {columns}
    inner t0 = to(p0[i0, r0], f32)
    reduce t1 = max %t0
    outer store p2[i0] = %t1
    reduce t2 = sum exp(sub(%t0, %t1))
    outer store p3[i0] = %t2
    outer store p4[i0] = \
sub(add(%t1, log(%t2)), to(p0[i0, checked(p1[i0], {columns})], f32))
""")


def column_sum(rows: int, columns: int, dtype: str = "f32", parts: int = 1) -> Kernel:
    """Sums of columns, in f32; of `parts` groups of rows each."""
    if parts > 1:
        return parse_kernel(f"""\
kernel column_sum(p0: read {dtype}[{parts}, {rows // parts}, {columns}], \
p1: write f32[{parts}, {columns}])
  for i0: {parts}, i1: {columns} inner r0: {rows // parts}
    reduce t0 = sum {_f32("p0[i0, r0, i1]", dtype)}
    outer store p1[i0, i1] = %t0
""")
    return parse_kernel(f"""\
kernel column_sum(p0: read {dtype}[{rows}, {columns}], p1: write f32[{columns}])
  for i0: {columns} inner r0: {rows}
    reduce t0 = sum {_f32("p0[r0, i0]", dtype)}
    outer store p1[i0] = %t0
""")


def transpose_add(rows: int, columns: int, dtype: str = "f32") -> Kernel:
    shape = f"{dtype}[{rows}, {columns}]"
    value = f"add({_f32('p0[i0, i1]', dtype)}, {_f32('p1[i1, i0]', dtype)})"
    return parse_kernel(f"""\
kernel transpose_add(p0: read {shape}, p1: read {dtype}[{columns}, {rows}], p2: write {shape})
  for i0: {rows}, i1: {columns}
    outer store p2[i0, i1] = {_narrow(value, dtype)}
""")


def embedding(vocabulary: int, tokens: int, columns: int, dtype: str = "f32") -> Kernel:
    return parse_kernel(f"""\
kernel embedding(p0: read {dtype}[{vocabulary}, {columns}], p1: read i64[{tokens}], \
p2: write {dtype}[{tokens}, {columns}])
  for i0: {tokens}, i1: {columns}
    outer store p2[i0, i1] = p0[checked(p1[i0], {vocabulary}), i1]
""")


def embedding_backward(vocabulary: int, tokens: int, columns: int, dtype: str = "f32") -> Kernel:
    """Rows added to those that indices name; other indices add nothing."""
    return parse_kernel(f"""\
kernel embedding_backward(p0: read i64[{tokens}], p1: read {dtype}[{tokens}, {columns}], \
p2: readwrite f32[{vocabulary}, {columns}])
  for i0: {columns} inner r0: {tokens}
    inner t0 = p0[r0]
    inner t1 = logical_and(ge(%t0, i64(0)), lt(%t0, i64({vocabulary})))
    inner t2 = where(%t1, %t0, i64(0))
    inner scatter add p2[%t2, i0] = where(%t1, {_f32("p1[r0, i0]", dtype)}, f32(0.0))
""")


def scattered(kind: str, dtype: str, rows: int = 100, points: int = 1000) -> Kernel:
    """Numbers combined with those at places that are checked."""
    return parse_kernel(f"""\
kernel scattered(p0: read i64[{points}], p1: read {dtype}[{points}], p2: readwrite {dtype}[{rows}])
  for i0: 1 inner r0: {points}
    inner t0 = checked(p0[r0], {rows})
    inner scatter {kind} p2[%t0] = p1[r0]
""")


def running_sum(rows: int, columns: int, dtype: str = "f32") -> Kernel:
    shape = f"{dtype}[{rows}, {columns}]"
    return parse_kernel(f"""\
kernel running_sum(p0: read {shape}, p1: write {shape})
  for i0: {rows} inner r0: {columns}
    scan t0: f32
      join add(%a0, %b0) along {_f32("p0[i0, r0]", dtype)}
    inner store p1[i0, r0] = {_narrow("%t0", dtype)}
""")


def sorted_keys(
    rows: int, columns: int, dtype: str = "i64", *, first: int | None = None, down: bool = False
) -> Kernel:
    """Integers of rows, or columns, in ascending order; all or the first."""
    kept = columns if first is None else first
    at = "r0, i0" if down else "i0, r0"
    shapes = ([columns, rows], [kept, rows]) if down else ([rows, columns], [rows, kept])
    words = "" if first is None else f"first {first} "
    return parse_kernel(f"""\
kernel sorted_keys(p0: read {dtype}{shapes[0]}, p1: write {dtype}{shapes[1]})
  for i0: {rows} inner r0: {columns}
    sort t0 = {words}p0[{at}]
    inner {words}store p1[{at}] = %t0
""")


def sorted_pairs(
    rows: int, columns: int, *, first: int | None = None, down: bool = False
) -> Kernel:
    """Integers of 64 bits of rows, or columns, and their positions, in a stable order."""
    kept = columns if first is None else first
    at = "r0, i0" if down else "i0, r0"
    shapes = ([columns, rows], [kept, rows]) if down else ([rows, columns], [rows, kept])
    words = "" if first is None else f"first {first} "
    params = f"p0: read i64{shapes[0]}, p1: write i64{shapes[1]}, p2: write i64{shapes[1]}"
    return parse_kernel(f"""\
kernel sorted_pairs({params})
  for i0: {rows} inner r0: {columns}
    sort t0, t1 = {words}pack(p0[{at}], to(index(r0), i32))
    inner {words}store p1[{at}] = %t0
    inner {words}store p2[{at}] = to(%t1, i64)
""")


def running_maximum(rows: int, columns: int) -> Kernel:
    """The largest so far, and where it is: two values are carried."""
    shape = [rows, columns]
    params = f"p0: read f32{shape}, p1: write f32{shape}, p2: write i64{shape}"
    return parse_kernel(f"""\
kernel running_maximum({params})
  for i0: {rows} inner r0: {columns}
    scan t0: f32, t1: i64
      $0 = logical_or(ge(%b0, %a0), isnan(%b0))
      join pack(where($0, %b0, %a0), where($0, %b1, %a1)) along pack(p0[i0, r0], index(r0))
    inner store p1[i0, r0] = %t0
    inner store p2[i0, r0] = %t1
""")


def dynamic() -> Kernel:
    """Rows divided by their sums; both sizes are known when the kernel is launched."""
    s0, s1 = Sym("s0").expr, Sym("s1").expr
    i0, r0 = Var("i0", s0), Var("r0", s1)
    params = (
        Param("p0", DType.f32, Layout.of([s0, s1]), Access.READ),
        Param("p1", DType.f32, Layout.of([s0, s1]), Access.WRITE),
    )
    t0 = Let("t0", Domain.INNER, Load("p0", [i0.expr, r0.expr], DType.f32))
    t1 = Reduce("t1", ReductionKind.SUM, Local("t0", DType.f32))
    value = Op("div", [Local("t0", DType.f32), Local("t1", DType.f32)])
    store = Store("p1", (i0.expr, r0.expr), Domain.INNER, value)
    return Kernel("dynamic", params, ("s0", "s1"), (i0,), (r0,), (t0, t1, store))


def _f32(text: str, dtype: str) -> str:
    return text if dtype == "f32" else f"to({text}, f32)"


def _narrow(text: str, dtype: str) -> str:
    return text if dtype == "f32" else f"to({text}, {dtype})"
