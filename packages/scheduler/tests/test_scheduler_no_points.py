"""Reductions over nothing are constants, and no kernel reads a tensor without elements."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from scheduler_checks import program_of

from plait_ir_lowering import Layout, Var, interpret, parse_graph, verify
from plait_scheduler import (
    Program,
    ProgramError,
    load_python,
    plan,
    render_python,
    verify_kernel,
    verify_program,
)

REDUCED = """graph main()
  input x: {dtype}[3, 0] on cpu
  define y: {result}[5] on cpu
    reduce {kind} for i0: 5 over r0: 0 = x[{place}]
  return y
"""
KINDS = [
    ("sum", "f32", 0.0),
    ("sum", "i64", 0),
    ("prod", "f32", 1.0),
    ("prod", "u8", 1),
    ("max", "f32", -math.inf),
    ("max", "i32", -(2**31)),
    ("min", "f64", math.inf),
    ("min", "u8", 255),
    ("any", "bool", False),
    ("all", "bool", True),
    ("argmax", "f32", 0),
    ("argmin", "i32", 0),
]


def made(text: str, *inputs: torch.Tensor) -> tuple[Program, list[torch.Tensor]]:
    """The program of a graph's text, whose kernels read nothing that is empty, and its results."""
    graph = parse_graph(text)
    verify(graph)
    program = plan(graph).program
    verify_program(program)
    for kernel in program.kernels:
        assert not any(
            param.layout.numel.is_constant and not param.layout.numel.as_int()
            for param in kernel.params
        ), kernel
    return program, load_python(render_python(program))(list(inputs))


@pytest.mark.parametrize(("kind", "dtype", "identity"), KINDS)
@pytest.mark.parametrize("place", ["i0, r0", "0, 0", "i0 // 2, r0"])
def test_a_reduction_over_nothing_is_its_neutral_element(kind, dtype, identity, place) -> None:
    result = "i64" if kind.startswith("arg") else dtype
    text = REDUCED.format(kind=kind, dtype=dtype, result=result, place=place)
    names = {"f32": torch.float32, "f64": torch.float64, "i64": torch.int64, "i32": torch.int32}
    names |= {"u8": torch.uint8, "bool": torch.bool}
    _, (got,) = made(text, torch.empty(3, 0, dtype=names[dtype]))
    assert got.dtype is names[result]
    assert got.tolist() == [identity] * 5


def test_of_what_is_empty_nothing_is_computed() -> None:
    program = program_of(
        """graph main()
  input x: f32[4, 3] on cpu
  define a: f32[4, 3] on cpu
    for i0: 4, i1: 3 = exp(x[i0, i1])
  define b: f32[4, 0] on cpu
    for i0: 4, i1: 0 = a[i0, i1 + 2]
  define c: f32[0] on cpu
    reduce sum for i0: 0 over r0: 4 = b[r0, i0]
  return b, c
""",
        torch.randn(4, 3),
        kernels=0,
    )
    assert {buffer.name for buffer in program.buffers} == {"x", "b", "c"}


def test_reads_of_what_is_empty_under_a_mask_are_constants() -> None:
    x = torch.empty(5, 0)
    _, (got,) = made(
        """graph main()
  input x: f32[5, 0] on cpu
  define y: f32[5, 2] on cpu
    for i0: 5, i1: 2 = masked(lt(index(i1), i64(0)), x[i0, i1], f32(7.0))
  return y
""",
        x,
    )
    assert torch.equal(got, torch.full((5, 2), 7.0))


GATHER = """graph main()
  input x: {dtype}[{size}, 2] on cpu
  input i: i64[3] on cpu
  define y: {dtype}[3, 2] on cpu
    for i0: 3, i1: 2 = x[checked(i[i0], {size}), i1]
  return y
"""


@pytest.mark.parametrize("dtype", ["f32", "i32", "bool", "c64"])
def test_an_index_into_nothing_fails(dtype) -> None:
    text = GATHER.format(size="0", dtype=dtype)
    kinds = {"f32": torch.float32, "i32": torch.int32, "bool": torch.bool, "c64": torch.complex64}
    given = torch.empty(0, 2, dtype=kinds[dtype]), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(IndexError):
        made(text, *given)
    with pytest.raises(IndexError):
        interpret(parse_graph(text), given)


SUMMED = """graph main()
  input x: f32[3, 7] on cpu
  define y: f32[3] on cpu
    reduce sum for i0: 3 over r0: 7 = x[i0, r0]
  return y
"""


def test_the_verifier_refuses_both() -> None:
    (kernel,) = plan(parse_graph(SUMMED)).program.kernels
    verify_kernel(kernel)
    with pytest.raises(ProgramError, match="the inner domain has points"):
        verify_kernel(replace(kernel, inner=(Var("r0", 0),)))
    first, *others = kernel.params
    empty = replace(first, layout=Layout.of([3, 0]))
    with pytest.raises(ProgramError, match="p0 has elements"):
        verify_kernel(replace(kernel, params=(empty, *others)))
