"""Small launches one behind the other are chained: hosts of GPUs launch them as one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from plait_ir_lowering import Graph, parse_graph, print_graph
from plait_scheduler import (
    Allocate,
    ChainedKernel,
    CombinedKernel,
    DecisionKind,
    Free,
    Kernel,
    Launch,
    Program,
    ProgramError,
    SchedulerOptions,
    kernel_work,
    load_python,
    members_of,
    parse_kernel,
    parse_program,
    plan,
    print_kernel,
    print_program,
    render_python,
    torch_kernel,
    verify_kernel,
    verify_program,
    with_chains,
)

GPU = SchedulerOptions.for_gpu()
LAYERS = """\
graph main({sizes})
  input x: f32[{rows}, 16] on {device}
  input w: f32[16, 16] on {device}
  define one: f32[{rows}, 16] on {device}
    reduce sum for i0: {rows}, i1: 16 over r0: 16 = mul(x[i0, r0], w[i1, r0])
  define two: f32[{rows}, 16] on {device}
    reduce sum for i0: {rows}, i1: 16 over r0: 16 = mul(one[i0, r0], w[i1, r0])
  define three: f32[{rows}, 16] on {device}
    reduce sum for i0: {rows}, i1: 16 over r0: 16 = mul(two[i0, r0], w[i1, r0])
  return three
"""
CALLED = """\
graph main()
  input x: f32[8, 16] on cpu
  define one: f32[8] on cpu
    reduce sum for i0: 8 over r0: 16 = x[i0, r0]
  define made: f32[8] on cpu
    call new aten::special_i1(one)
  define two: f32[16] on cpu
    reduce sum for i1: 16 over r0: 8 = mul(x[r0, i1], made[r0])
  return two
"""
TAKEN = """\
graph main()
  input x: f32[8, 16] on cpu
  input at: i64[8] on cpu
  define one: f32[8] on cpu
    reduce sum for i0: 8 over r0: 16 = x[i0, r0]
  define two: f32[16] on cpu
    reduce sum for i1: 16 over r0: 8 = one[checked(at[r0], 8)]
  return two
"""


def graph_of(rows: int | str = 8, device: str = "cpu") -> Graph:
    sizes = "" if isinstance(rows, int) else f"{rows} in 2..9999"
    return parse_graph(LAYERS.format(rows=rows, device=device, sizes=sizes))


def layers(rows: int | str = 8, device: str = "cpu", options: SchedulerOptions = GPU) -> Program:
    return plan(graph_of(rows, device), options=options).program


def words(program: Program) -> list[str]:
    """How each launch is written."""
    text = print_program(program).split("  steps\n")[1]
    found = (line.split()[0] for line in text.splitlines())
    return [word for word in found if word in ("launch", "together", "chained")]


def test_small_launches_are_chained() -> None:
    program = layers()
    assert words(program) == ["launch", "chained", "chained"]
    verify_program(program)
    assert parse_program(print_program(program)) == program
    assert words(layers(options=SchedulerOptions())) == ["launch"] * 3


def test_each_is_a_decision() -> None:
    graph = graph_of()
    found = plan(graph, options=GPU).decisions
    assert [d.accepted for d in found if d.kind is DecisionKind.CHAIN] == [True, True]
    fuel = sum(d.accepted for d in found) - 1
    assert words(plan(graph, options=replace(GPU, fuel=fuel)).program)[-1] == "launch"


def test_a_host_of_a_gpu_has_one_launch() -> None:
    program = layers()
    made = with_chains(program)
    (kernel,) = made.kernels
    assert isinstance(kernel, ChainedKernel)
    assert kernel.links == (0, 0, 0)
    assert [param.name for param in kernel.params[:4]] == ["p0_0", "p1_0", "p2_0", "p0_1"]
    verify_kernel(kernel)
    assert parse_kernel(print_kernel(kernel)) == kernel
    kinds = [type(step) for step in made.steps]
    assert kinds.count(Launch) == 1
    at = kinds.index(Launch)
    assert Allocate not in kinds[at:]
    assert Free not in kinds[:at]
    assert sorted(map(str, made.steps[:at] + made.steps[at + 1 :])) == sorted(
        str(step) for step in program.steps if not isinstance(step, Launch)
    )


@pytest.mark.parametrize("chained", [True, False])
def test_it_computes_the_same(chained: bool) -> None:
    program = layers()
    run = load_python(render_python(with_chains(program) if chained else program, torch_kernel))
    x, w = torch.randn(8, 16), torch.randn(16, 16)
    (found,) = run([x, w])
    torch.testing.assert_close(found, x @ w.T @ w.T @ w.T, rtol=1e-4, atol=1e-4)


def test_its_work_is_that_of_its_links() -> None:
    program = layers()
    (kernel,) = with_chains(program).kernels
    (link,) = program.kernels
    assert members_of(kernel) == (link,) * 3
    assert kernel_work(kernel).operations == 3 * kernel_work(link).operations


@pytest.mark.parametrize(
    ("rows", "changed"),
    [
        (4096, {}),
        ("s0", {}),
        (8, {"most_chained_bytes": 100}),
        (8, {"most_chained_operations": 100}),
        (8, {"max_links": 1}),
        (8, {"max_arguments": 5}),
        (8, {"chain_launches": False}),
    ],
)
def test_what_is_not_chained(rows: int | str, changed: dict[str, int]) -> None:
    assert set(words(layers(rows, options=replace(GPU, **changed)))) == {"launch"}


def test_a_chain_has_so_many_links() -> None:
    found = words(layers(options=replace(GPU, max_links=2)))
    assert found == ["launch", "chained", "launch"]


def test_calls_and_what_may_fail_end_a_chain() -> None:
    called = plan(parse_graph(CALLED), options=GPU).program
    assert words(called) == ["launch", "launch"]
    assert words(plan(parse_graph(TAKEN), options=GPU).program) == ["launch", "launch"]


def test_the_cpu_beside_a_gpu_chains_nothing() -> None:
    text = print_graph(graph_of()).replace("input w", "input y: f32[1] on cuda:0\n  input w")
    assert set(words(plan(parse_graph(text), options=GPU).program)) == {"launch"}


def test_memory_of_a_link_is_that_of_another() -> None:
    """Temporaries that follow each other in memory do so within a chain."""
    program = layers()
    three = next(b for b in program.buffers if b.name == "three")
    assert program.arena_nbytes.as_int() == 2 * three.nbytes.as_int()
    assert with_chains(program).arena_nbytes is program.arena_nbytes


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("    allocate one\n    launch ", "    allocate one\n    chained ", "follows a launch"),
        ("chained sum", "chained missing", "no open sizes"),
    ],
)
def test_wrong_chains_are_refused(old: str, new: str, rule: str) -> None:
    text = print_program(layers())
    assert old in text
    with pytest.raises(ProgramError, match=rule):
        verify_program(parse_program(text.replace(old, new, 1)))


def test_wrong_kernels_are_refused() -> None:
    (kernel,) = with_chains(layers()).kernels
    assert isinstance(kernel, ChainedKernel)
    open_kernel = replace(kernel.kernels[0], symbols=("s0",))
    for wrong in (
        replace(kernel, links=(0, 1)),
        replace(kernel, kernels=(open_kernel,)),
    ):
        with pytest.raises(ProgramError):
            verify_kernel(wrong)


def test_a_launch_does_not_follow_one_at_the_same_time() -> None:
    with pytest.raises(ValueError, match="at the same time"):
        Launch("kernel", (), together=True, chained=True)


def test_programs_without_chains_stay_as_they_are() -> None:
    program = layers(options=SchedulerOptions())
    assert with_chains(program) is program
    assert all(isinstance(each, Kernel | CombinedKernel) for each in program.kernels)
