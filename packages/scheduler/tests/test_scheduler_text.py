"""Programs print as text that reads back to the same program."""

from __future__ import annotations

import pytest
import torch
from scheduler_graphs import Builder, transformer

from plait_ir_lowering import (
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
    Origin,
    Pointwise,
    Sym,
    TensorRef,
    Var,
    as_index,
)
from plait_scheduler import (
    ProgramSyntaxError,
    parse_kernel,
    parse_program,
    plan,
    print_kernel,
    print_program,
)


def test_transformer_reads_back() -> None:
    b, y = transformer(2)
    program = plan(b.graph(y)).program
    assert parse_program(print_program(program)) == program


def test_every_kind_of_value_and_argument_reads_back() -> None:
    s = Sym("s0", 2).expr
    cpu, f32 = Device("cpu"), DType.f32
    x = Buffer("x", f32, cpu, Layout.of([s, 6], [8, 1], 3))
    ids = Buffer("ids", DType.i64, Device("cuda", 1), Layout.of([s]))
    i0, i1 = Var("i0", s), Var("i1", 6)
    row = CheckedIndex(Op("to", [Load("x", [i0.expr, as_index(0)], f32)], DType.i64), s)
    load = Load("x", [row, i1.expr], f32)
    mask = Op("lt", [IndexValue(i1.expr * 2 - s // 3), Const(5, DType.i64)])
    numbers = [Const(v, f32) for v in (0.1, float("nan"), float("-inf"), -0.0)]
    total = load
    for number in numbers:
        total = Op("add", [Op("mul", [total, total]), number])
    value = Op("bitcast", [Masked(mask, total, numbers[0])], DType.i32)
    out = Buffer("out", DType.i32, cpu, Layout.of([s, 6]))
    args = (
        TensorRef("out", Layout.of([2, s], [s + 1, 1], 4), f32),
        TensorRef("out", None, f32),
        ExternList((1, True, None, 0.5, float("inf"), s * 2, -3, ExternList(()))),
        'a "quoted", text',
        DType.bool_,
        Device("cuda", 0),
    )
    called = Buffer("called", f32, cpu, Layout.of([s]))
    other = Buffer("other", f32, cpu, Layout.of([s]))
    graph = Graph(
        "all",
        (x, ids),
        (
            Definition((out,), Pointwise((i0, i1), value), Origin(("n",), ('line "1", # from',))),
            Definition((called, other), ExternCall("my::op", "some", args)),
        ),
        (TensorRef("called"), s + 1, 3, 0.5, None, True),
        (("x", TensorRef("called", Layout.of([2]))),),
    )
    program = plan(graph).program
    text = print_program(program)
    again = parse_program(text)
    assert again == program
    assert print_program(again) == text
    assert program.symbols == ("s0",)
    for kernel in program.kernels:
        assert parse_kernel(print_kernel(kernel)) == kernel


def test_shared_parts_of_a_value_print_once() -> None:
    b = Builder()
    y = b.input(torch.randn(8))
    for _ in range(24):
        y = b.binary("mul", y, y)
    (kernel,) = plan(b.graph(y)).program.kernels
    text = print_kernel(kernel)
    assert len(text) < 2000
    assert parse_kernel(text) == kernel


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("exp(", "unknown(", "no operation"),
        ("p0[i0]", "p9[i0]", "p9"),
        ("[i0]", "[i7]", "i7"),
        ("arena 0", "arena", "arena bytes"),
        ("return", "give", "no step"),
        ("f32[8]", "f32 8", "layout"),
        ("program main", "programm", "program name"),
    ],
)
def test_errors_name_the_line(old: str, new: str, message: str) -> None:
    b = Builder()
    text = print_program(plan(b.graph(b.unary("exp", b.input(torch.randn(8))))).program)
    assert old in text
    with pytest.raises(ProgramSyntaxError, match=message) as caught:
        parse_program(text.replace(old, new))
    assert "line " in str(caught.value)
