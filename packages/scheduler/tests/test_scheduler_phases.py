"""Which statements share a loop, and what is kept or computed again between loops."""

from __future__ import annotations

import pytest
import torch
from scheduler_graphs import Builder

from plait_ir_lowering import Local, post_order
from plait_scheduler import (
    Domain,
    Kernel,
    Let,
    Phase,
    SchedulerOptions,
    load_python,
    parse_kernel,
    phases,
    plan,
    render_python,
    row_scratch,
)


def _kernel(*statements: str, params: str = "p0: read f32[4, 6], p1: write f32[4, 6]") -> Kernel:
    return parse_kernel("\n".join([f"kernel k({params})", "for i0: 4 inner r0: 6", *statements]))


def _names(phase: Phase) -> list[str]:
    return [getattr(s, "name", "store") for s in phase.statements]


def test_softmax_has_three_loops_and_keeps_the_exponentials() -> None:
    kernel = _kernel(
        "inner t0 = p0[i0, r0]",
        "reduce t1 = max %t0",
        "inner t2 = exp(sub(%t0, %t1))",
        "reduce t3 = sum %t2",
        "outer t4 = reciprocal(%t3)",
        "inner store p1[i0, r0] = mul(%t2, %t4)",
    )
    found = phases(kernel)
    assert [_names(p) for p in found] == [["t0", "t1"], ["t0", "t2", "t3"], ["t4"], ["store"]]
    assert [p.domain for p in found].count(Domain.OUTER) == 1
    assert [p.saves for p in found] == [(), ("t2",), (), ()]
    assert [p.restores for p in found] == [(), (), (), ("t2",)]
    assert [name for name, _ in row_scratch(found)] == ["t2"]


def test_reductions_that_do_not_depend_on_each_other_share_a_loop() -> None:
    kernel = _kernel(
        "reduce t0 = max p0[i0, r0]",
        "reduce t1 = min p0[i0, r0]",
        "outer t2 = sub(%t0, %t1)",
        "inner store p1[i0, r0] = div(p0[i0, r0], %t2)",
    )
    assert [_names(p) for p in phases(kernel)] == [["t0", "t1"], ["t2"], ["store"]]


def test_pointwise_kernels_are_one_outer_phase() -> None:
    kernel = parse_kernel(
        "kernel k(p0: read f32[4], p1: write f32[4])\nfor i0: 4\nouter store p1[i0] = exp(p0[i0])"
    )
    (phase,) = phases(kernel)
    assert phase.domain is Domain.OUTER


def test_recomputing_reaches_through_named_values() -> None:
    kernel = _kernel(
        "inner t0 = p0[i0, r0]",
        "inner t1 = mul(%t0, f32(2.0))",
        "reduce t2 = max %t1",
        "inner store p1[i0, r0] = sub(%t1, %t2)",
    )
    assert [_names(p) for p in phases(kernel)] == [["t0", "t1", "t2"], ["t0", "t1", "store"]]


@pytest.mark.parametrize(
    "value",
    ["exp(p0[i0, r0])", "div(p0[i0, r0], f32(3.0))", "masked(bool(True), p0[i0, r0], f32(0.0))"],
)
def test_costly_or_guarded_values_are_kept(value: str) -> None:
    kernel = _kernel(
        f"inner t0 = {value}",
        "reduce t1 = max %t0",
        "inner store p1[i0, r0] = sub(%t0, %t1)",
    )
    assert phases(kernel)[0].saves == ("t0",)


def test_rows_read_through_one_index_are_read_again() -> None:
    kernel = _kernel(
        "outer t0 = checked(p0[i0], 9)",
        "inner t1 = p1[%t0, r0]",
        "reduce t2 = max %t1",
        "inner store p2[i0, r0] = sub(%t1, %t2)",
        params="p0: read i64[4], p1: read f32[9, 6], p2: write f32[4, 6]",
    )
    assert [_names(p) for p in phases(kernel)] == [["t0"], ["t1", "t2"], ["t1", "store"]]


def test_what_is_overwritten_meanwhile_is_kept() -> None:
    kernel = _kernel(
        "inner t0 = p0[i0, r0]",
        "inner store p0[i0, r0] = neg(%t0)",
        "reduce t1 = max %t0",
        "inner store p1[i0, r0] = sub(%t0, %t1)",
        params="p0: readwrite f32[4, 6], p1: write f32[4, 6]",
    )
    first, last = phases(kernel)
    assert first.saves == ("t0",)
    assert last.restores == ("t0",)


def test_what_is_overwritten_last_is_read_again() -> None:
    kernel = _kernel(
        "inner t0 = p0[i0, r0]",
        "reduce t1 = max %t0",
        "inner store p0[i0, r0] = sub(%t0, %t1)",
        params="p0: readwrite f32[4, 6]",
    )
    assert [_names(p) for p in phases(kernel)] == [["t0", "t1"], ["t0", "store"]]


def test_every_phase_can_run_from_what_it_lists() -> None:
    """Each local that a phase uses is computed in it, restored, or known for the row."""
    torch.manual_seed(0)
    b = Builder()
    x = b.input(torch.randn(8, 32))
    w = b.input(torch.randn(32))
    y = b.softmax(b.layer_norm(b.gelu(b.binary("add", x, w)), w))
    schedule = plan(b.graph(y), options=SchedulerOptions())
    (got,) = load_python(render_python(schedule.program))(b.given)
    torch.testing.assert_close(got, y.value)
    (kernel,) = schedule.program.kernels
    row: set[str] = set()
    saved: set[str] = set()
    for phase in phases(kernel):
        known = set(phase.restores)
        assert known <= saved
        for statement in phase.statements:
            for value in post_order([statement.value]):
                if isinstance(value, Local):
                    assert value.name in known | row
            if isinstance(statement, Let) and statement.domain is Domain.INNER:
                known.add(statement.name)
        row |= {s.name for s in phase.statements if hasattr(s, "name") and s.name not in known}
        saved |= set(phase.saves)
