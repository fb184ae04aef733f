"""Integers that Python reads from tensors under modes of torch: the graph goes on, as elsewhere."""

from __future__ import annotations

import pytest
import torch
from counted import VALUES, call_with, compare, outcome, read, same

import plait


def without_gradients(x):
    with torch.no_grad():
        n = read(x)
    return x[:n] * 2


def for_inference(x):
    with torch.inference_mode():
        n = read(x)
        y = x[:n] * 2
    return y, y.sum() + n


@torch.inference_mode()
def decorated(x):
    return x[: read(x)] * 2, x.view(4, 5).t() + 1


def with_inference_left(x):
    with torch.inference_mode():
        y = x * 2
        with torch.inference_mode(False):
            n = read(x)
        return y[:n], torch.is_inference_mode_enabled()


def on_a_device(x):
    with torch.device("cpu"):
        n = read(x)
        return torch.zeros(n) + x[:n]


def rounded(x):
    with torch.autocast("cpu"):
        n = read(x)
        return torch.mm(x[:n, None], x[None, :n])


@pytest.mark.parametrize(
    "program",
    [without_gradients, for_inference, decorated, with_inference_left, on_a_device, rounded],
)
@pytest.mark.sampled(2)
def test_integers_stay_in_one_graph_under_modes(program):
    compiled = plait.compile(program, fullgraph=True)
    compare(compiled, program)
    assert len(compiled.entries) == 1
    assert not torch.is_inference_mode_enabled()


def fails_for_inference(x):
    with torch.inference_mode():
        n = read(x)
        return torch.zeros(n - 3), x[n + 4]


def fails_on_a_device(x):
    with torch.device("cpu"):
        return torch.zeros(read(x) - 3), x[read(x) + 4]


@pytest.mark.parametrize("program", [fails_for_inference, fails_on_a_device])
def test_modes_are_left_where_the_graph_fails(program):
    compiled = plait.compile(program)
    for count in VALUES:
        same(outcome(compiled, call_with(count)), outcome(program, call_with(count)))
        assert not torch.is_inference_mode_enabled()
        assert torch.is_grad_enabled()


def test_gradients_flow_around_inference():
    def program(x):
        y = x.sin()
        with torch.inference_mode():
            n = read(x.detach())
        return (y[:n] * n).sum()

    compiled = plait.compile(program, fullgraph=True)
    for count in VALUES:
        found = []
        for run in (compiled, program):
            x = call_with(count).requires_grad_()
            total = run(x)
            total.backward()
            found.append((total.detach(), x.grad))
        same(*found)


def test_views_in_inference_mode_are_of_one_graph():
    def program(x):
        with torch.inference_mode():
            return x[:3] * 2, torch.nn.functional.linear(x.view(4, 5), x[:5]), x.view(4, 5)

    compiled = plait.compile(program, fullgraph=True)
    compare(compiled, program, (3, 5))
    assert len(compiled.entries) == 1


def test_breaks_say_why_an_integer_is_read_there():
    def mapped(x):
        return torch.func.vmap(lambda row: row * read(x))(x.view(2, 10))

    def listed(x):
        return torch.tril_indices(read(x) + 1, 3)

    for program, why in ((mapped, "a transform or a checkpoint calls"), (listed, "tril_indices")):
        compiled = plait.compile(program)
        compare(compiled, program, (3, 5))
        assert why in compiled.breaks[0].reason
