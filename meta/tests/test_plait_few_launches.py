"""What small kernels of equal code compute takes a GPU few launches: programs as for one."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import nn

import plait
from plait import pipeline
from plait.reporting.panes import _code_pane
from plait.reporting.planned import merged
from plait_ir_lowering import Graph, parse_graph, print_graph
from plait_scheduler import Launch, Program, SchedulerOptions, plan, with_chains
from plait_triton_codegen import render_kernel

SHAPES = [(64, 16), (16,), (16,), (16, 48), (48,), (16, 16), (16,), (64, 16), (5, 3), (7,)] * 3
OPTIMIZERS = {
    "AdamW": (torch.optim.AdamW, {"foreach": True}),
    "AdamW for each": (torch.optim.AdamW, {"foreach": False}),
    "AdamW fused": (torch.optim.AdamW, {"fused": True}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
}
COMBINED = {"scheduler.combine_launches": True}


@pytest.fixture
def results_are_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by programs of several devices, which write to no inputs."""
    monkeypatch.setattr(pipeline, "writes_inputs", lambda *given: False)


def on_gpu(graph: Graph, *, combine: bool) -> Program:
    """Its program for a GPU."""
    options = SchedulerOptions.for_gpu()
    if not combine:
        options = replace(options, combine_launches=False, chain_launches=False)
    moved = parse_graph(print_graph(graph).replace(" on cpu", " on cuda:0"))
    return plan(moved, options=options).program


def launches(graph: Graph, *, combine: bool) -> int:
    return sum(isinstance(step, Launch) for step in on_gpu(graph, combine=combine).steps)


def training(name: str) -> tuple[list[nn.Parameter], torch.optim.Optimizer]:
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    make, options = OPTIMIZERS[name]
    return parameters, make(parameters, **options)


def steps(parameters: list[nn.Parameter], step, times: int = 3) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(times):
        for each in parameters:
            each.grad = torch.randn(each.shape, generator=generator)
        step()


def test_numbers_of_the_cpu_part_nothing_that_is_combined(
    results_are_handed_out: None,
) -> None:
    """The steps that an optimizer counts are the CPU's, and numbers that follow from them."""
    parameters, optimizer = training("AdamW")
    step = plait.compile(optimizer.step)
    steps(parameters, step)
    graph = plait.report(step).graphs[-1].record.loops
    moved = re.sub(r"(\w+\[\d.*\]) on cpu", r"\1 on cuda:0", print_graph(graph))
    assert " on cpu" in moved
    program = plan(parse_graph(moved), options=SchedulerOptions.for_gpu()).program
    place = {buffer.name: buffer.device.type for buffer in program.buffers}
    launched = [each for each in program.steps if isinstance(each, Launch)]
    beside = [each for each in launched if {place[name] for name in each.buffers} == {"cpu"}]
    assert len(beside) == len(SHAPES)
    assert len(launched) - len(beside) < 8
    assert {"cpu", "cuda"} in [{place[name] for name in each.buffers} for each in launched]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [*OPTIMIZERS])
def test_a_step_of_an_optimizer(results_are_handed_out: None, name: str) -> None:
    (mine, optimizer), (others, other) = training(name), training(name)
    step = plait.compile(optimizer.step, options=COMBINED)
    steps(mine, step)
    steps(others, other.step)
    for one, two in zip(mine, others, strict=True):
        torch.testing.assert_close(one, two)
        torch.testing.assert_close(optimizer.state[one], other.state[two])
    graph = plait.report(step).graphs[-1].record.loops
    assert graph is not None
    assert launches(graph, combine=False) >= len(SHAPES)
    assert launches(graph, combine=True) <= 6
    assert merged(on_gpu(graph, combine=False)) == ""
    told = re.fullmatch(r"(\d+) launches are combined into \d", merged(on_gpu(graph, combine=True)))
    assert told is not None
    assert int(told[1]) >= len(SHAPES)


@pytest.mark.parametrize("name", ["AdamW", "momentum"])
def test_a_step_in_place(name: str) -> None:
    """Members write to their parameters, as on a CPU."""
    (mine, optimizer), (others, other) = training(name), training(name)
    step = plait.compile(optimizer.step, options=COMBINED)
    steps(mine, step)
    steps(others, other.step)
    for one, two in zip(mine, others, strict=True):
        torch.testing.assert_close(one, two)
    record = plait.report(step).graphs[-1].record
    assert record.loops is not None
    assert record.loops.mutations
    assert launches(record.loops, combine=True) <= 6
    assert "combining of launches" in record.schedule.explain()


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [
        layer
        for _ in range(5)
        for layer in (nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    ]
    return nn.Sequential(*layers)


def test_counters_and_copies_of_layers(results_are_handed_out: None) -> None:
    """Of a model that is trained in 16 bits: weights and their gradients are converted."""
    models = network(), network()

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x).float().square().mean()

    compiled = plait.compile(loss, options=COMBINED)
    x = torch.randn(2, 8, 6, 6)
    for _ in range(2):
        compiled(models[0], x).backward()
        loss(models[1], x).backward()
    for one, two in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=0.05, atol=0.01)
    for one, two in zip(models[0].buffers(), models[1].buffers(), strict=True):
        torch.testing.assert_close(one, two, rtol=0.05, atol=0.01)
    forward = plait.report(compiled).graphs[0].record.loops
    assert forward is not None
    assert launches(forward, combine=False) - launches(forward, combine=True) >= 8


def layers(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    for weight in weights:
        x = torch.softmax(x @ weight, 0)
    return x


def test_small_kernels_are_chained() -> None:
    given = [torch.randn(size) for size in ((4, 8), (8, 8), (8, 8), (8, 8))]
    compiled = plait.compile(layers, options={"scheduler.chain_launches": True})
    torch.testing.assert_close(compiled(*given), layers(*given))
    graph = plait.report(compiled).graphs[-1]
    assert "chaining of launches" in graph.record.schedule.explain()
    assert graph.launches < len(graph.kernels) * 3
    program = on_gpu(graph.record.loops, combine=True)
    many = sum(isinstance(step, Launch) for step in program.steps)
    assert merged(program) == f"{many} launches are chained into one"
    chained = with_chains(program)
    assert sum(isinstance(step, Launch) for step in chained.steps) == 1
    code = "\n".join(str(render_kernel(kernel)) for kernel in chained.kernels)
    pane = _code_pane("Triton", code, program)
    of_links = [line for line in pane.lines if re.match(r"def chained_\w+_\d+\(program", line.text)]
    assert len(of_links) == len(chained.kernels[0].kernels)
    assert all("layers" in origin for line in of_links for origin in line.origins)
    assert all(line.origins for line in of_links)
