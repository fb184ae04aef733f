"""Constants are made where they are used: moved as a whole, or not at all."""

from __future__ import annotations

import pytest
import torch
from fx_oracle import trace

from plait_fx_passes import (
    DEFAULT_PASSES,
    find_bad_rewrite,
    print_aten,
    run_passes,
    to_aten,
    verify,
)

# The device "meta" stands for an accelerator: its kernels take what those of others take.
COPY = "aten._to_copy.default"


def apply(program, x=None, passes=DEFAULT_PASSES):
    """For each call that is left, its operator and its result's device."""
    x = torch.empty(4, 6, device="meta") if x is None else x
    graph = to_aten(trace(program), [x])
    left = run_passes(graph, passes, verify_each=True)
    result, wanted = left.results[0].meta["val"], graph.results[0].meta["val"]
    assert (result.dtype, result.device, result.shape) == (
        wanted.dtype,
        wanted.device,
        wanted.shape,
    )
    calls = [node for node in left.graph.nodes if node.op == "call_function"]
    return {str(node.target): node.meta["val"].device.type for node in calls}


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x * torch.arange(x.size(1)).to("meta"),
        lambda x: x * torch.arange(x.size(1)).to(device="meta", dtype=torch.float32),
        lambda x: x * torch.arange(0, 2 * x.size(1), 2).float().to("meta"),
        lambda x: x * (torch.arange(x.size(1)) * 2 + 1).flip(0).view(1, -1).to("meta"),
        lambda x: x + torch.full((x.size(0), 1), 0.1).to("meta"),
        lambda x: x[torch.arange(x.size(0)).flip(0)],
        lambda x: x * torch.full((x.size(0) - 4,), 2.0).new_full((), 0.1),
        lambda x: torch.where(x > 0, x, torch.full((x.size(0) - 4,), 0.5).new_full((), 0.1)),
    ],
)
def test_constants_that_only_another_device_uses_are_made_there(program):
    left = apply(program)
    assert set(left.values()) == {"meta"}
    assert left.get(COPY) in (None, "meta")


@pytest.mark.parametrize(
    "program",
    [
        lambda x: (x * (i := torch.arange(x.size(1))).to("meta"), i),  # the caller gets it
        lambda x: x * torch.arange(x.size(1)).sin().to("meta"),  # rounds as the device does
        lambda x: x * torch.arange(0.0, x.size(1) * 0.5, 0.5).to("meta"),
        lambda x: x * torch.rand(x.size(1)).to("meta"),
        lambda x: x * (torch.arange(x.size(1)) + torch.randint(3, (x.size(1),))).to("meta"),
        lambda x: x / torch.full((x.size(0) - 4,), 0.1).new_full((), 3.0),  # multiplied by 1/3
        lambda x: x.half() * torch.full((x.size(0) - 4,), 0.1).new_full((), 0.1),  # not rounded
        lambda x: x * torch.full((x.size(1),), 0.1, dtype=torch.float64).half().to("meta"),
    ],
)
def test_other_constants_stay_on_the_cpu(program):
    left = apply(program, passes=DEFAULT_PASSES[1:])  # constants are not folded
    assert "cpu" in left.values()


def test_what_the_cpu_needs_too_stays_there_as_a_whole():
    def program(x):
        i = torch.arange(x.size(1))
        j = i * 2
        return x * j.to("meta"), (i + 1).sin()

    left = apply(program)
    assert left["aten.arange.start_step"] == "cpu"
    assert left[COPY] == "meta"


def test_graphs_of_one_device_stay_as_they_are():
    graph = to_aten(trace(lambda x: x * torch.arange(x.size(1)).float()), [torch.ones(4, 6)])
    (moving,) = (each for each in DEFAULT_PASSES if each.name == "constructors")
    assert print_aten(moving(graph)) == print_aten(graph)


def test_numbers_that_are_read_from_tensors_are_made_where_they_are_read():
    gm = trace(lambda x, y: x * torch.full((x.size(1),), y.item()).to("meta"))
    graph = to_aten(gm, [torch.empty(4, 6, device="meta"), torch.tensor(2.0)])
    left = run_passes(graph, verify_each=True)
    assert any(str(node.meta["val"].device) == "cpu" for node in left.graph.nodes if node.users)


def test_moving_is_one_rewrite_that_the_bisector_finds():
    gm = trace(lambda x: x * (torch.arange(x.size(1)) + 1).to("meta"))
    graph = to_aten(gm, [torch.empty(4, 6, device="meta")])

    def has_cpu(each):
        verify(each)
        devices = {str(n.meta["val"].device) for n in each.graph.nodes if n.op == "call_function"}
        return "cpu" in devices

    (moving,) = (each for each in DEFAULT_PASSES if each.name == "constructors")
    found = find_bad_rewrite(graph, has_cpu, (moving,))
    assert (found.pass_name, found.rewrite) == ("constructors", 1)
