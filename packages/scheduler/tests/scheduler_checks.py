"""How the tests run a graph: schedule, verify, print and read back, execute, compare."""

from __future__ import annotations

import torch
from scheduler_graphs import Builder, T

from plait_ir_lowering import interpret, parse_graph, verify
from plait_scheduler import (
    Attend,
    Kernel,
    Program,
    Schedule,
    SchedulerOptions,
    load_python,
    parse_program,
    phases,
    plan,
    print_program,
    render_python,
    verify_program,
)


def is_attention(kernel: Kernel) -> bool:
    """Whether a kernel is one, and so no sequence of loops."""
    return any(isinstance(statement, Attend) for statement in kernel.statements)


def run(b: Builder, *outputs: T, options: SchedulerOptions | None = None, tol=2e-4) -> Schedule:
    """Schedule and run the graph; fails with the program where a result is wrong."""
    graph = b.graph(*outputs)
    verify(graph)
    schedule = plan(graph, options=options)
    program = schedule.program
    text = print_program(program)
    assert parse_program(text) == program
    for kernel in program.kernels:
        assert is_attention(kernel) or phases(kernel)
    source = render_python(program)
    results = load_python(source)(b.given)
    for got, meant in zip(results, interpret(graph, b.given)):
        torch.testing.assert_close(got, meant, rtol=tol, atol=tol, equal_nan=True)
    assert len(results) == len(outputs)
    for got, expected in zip(results, outputs):
        torch.testing.assert_close(
            got,
            expected.value,
            rtol=tol,
            atol=tol,
            equal_nan=True,
            msg=lambda m: f"{m}\n{text}\n{source}",
        )
    return schedule


def kernel_count(schedule: Schedule) -> int:
    """How many launches the program has."""
    return sum(type(step).__name__ == "Launch" for step in schedule.program.steps)


def program_of(text: str, *inputs: torch.Tensor, kernels: int) -> Program:
    """The program of a graph's text, of so many kernels, which computes what the graph says."""
    graph = parse_graph(text)
    verify(graph)
    program = plan(graph).program
    verify_program(program)
    assert len(program.kernels) == kernels, print_program(program)
    assert parse_program(print_program(program)) == program
    found = load_python(render_python(program))(list(inputs))
    for ours, theirs in zip(found, interpret(graph, inputs), strict=True):
        torch.testing.assert_close(ours, theirs)
    return program
