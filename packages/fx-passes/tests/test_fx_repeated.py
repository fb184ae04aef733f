"""What is recorded once and copied is what would have been recorded each time."""

from __future__ import annotations

import pytest
import torch
from fx_oracle import check_program
from torch import fx

from plait_fx_passes import print_aten, to_aten
from plait_fx_passes.record.recorder import Recorder
from plait_fx_passes.record.repeated import Repeated


def adam(a, b, c, d):
    torch._foreach_lerp_([a, b], [c, d], 0.1)
    torch._foreach_mul_([c, d], 0.9)
    torch._foreach_addcmul_([c, d], [a, b], [a, b], 0.5)
    torch._foreach_addcdiv_([a, b], [c, d], torch._foreach_sqrt([c, d]), [2.0, 2.0])


def of_other_numbers(a, b, c, d):
    torch._foreach_addcdiv_([a, b, c], [d, d, d], [d, d, d], [1.0, 2.0, 1])
    torch._foreach_add_([a, b, c], [d, d, d], alpha=1)
    torch._foreach_add_([a, b, c], [d, d, d], alpha=3)


def of_itself(a, b, c, d):
    a.mul_(b)
    c.mul_(c)
    d.mul_(d)
    b.mul_(a)
    a.addcmul_(a, b)
    c.addcmul_(d, d)
    d.addcmul_(c, b)


def of_views(a, b, c, d):
    for each in (a, b, c, d):
        each[1:].mul_(2)
        each.t().add_(each[0, 0].clone())
        each.mul_(2)
        each[:, 1].mul_(2)


def on_temporaries(a, b, c, d):
    made = [each.clone() for each in (a, b, c, d)]
    for each in made:
        each.clamp_(0, 1).addcdiv_(a, b + 1, value=0.5)
    for each, one in zip((a, b, c, d), made, strict=True):
        each.copy_(one)


def with_results_of_other_kinds(a, b, c, d):
    for each in (a, b, c):
        each.add_(d)
        each.zero_()
        each.fill_(3.0)
        each.masked_fill_(d > 0, 2.0)
        each.floor_divide_(2)


PROGRAMS = [
    *(adam, of_other_numbers, of_itself, of_views, on_temporaries),
    with_results_of_other_kinds,
]
KINDS = {
    "alike": [torch.float32] * 4,
    "half": [torch.float16] * 4,
    "several": [torch.float32, torch.float64, torch.float32, torch.float32],
}


def tensors(kind, *, strided=False):
    torch.manual_seed(0)
    made = [torch.rand(3, 3).to(dtype) + 0.5 for dtype in KINDS[kind]]
    return [each.t() if strided and n % 2 else each for n, each in enumerate(made)]


def recorded(program, inputs):
    """The graph as text, or what recording raises."""
    try:
        return print_aten(to_aten(fx.symbolic_trace(program), inputs))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_copies_are_what_is_recorded(program, kind, strided, monkeypatch):
    found = recorded(program, tensors(kind, strided=strided))
    monkeypatch.setattr(Recorder, "call_of", lambda *args: None)
    assert found == recorded(program, tensors(kind, strided=strided))


@pytest.mark.parametrize("program", PROGRAMS)
def test_values(program):
    check_program(program, tensors("alike"))


def test_numbers_that_calls_give(monkeypatch):
    """Of each operator its own number, and what is computed with it."""

    def program(a, b, c, d, one, two):
        torch._foreach_addcdiv_([a, b], [c, d], [d, c], [one, two])
        torch._foreach_lerp_([a, b], [c, d], one)
        torch._foreach_mul_([a, b], [two, two])

    inputs = [*tensors("alike"), 0.25, 0.5]
    found = recorded(program, inputs)
    assert "Error" not in found.splitlines()[0]
    monkeypatch.setattr(Recorder, "call_of", lambda *args: None)
    assert found == recorded(program, inputs)


def test_operators_are_recorded_once_for_tensors_that_are_alike(monkeypatch):
    def recorded_for(count):
        graph = fx.Graph()
        nodes = [graph.placeholder(f"x{n}") for n in range(2 * count)]
        some, others = nodes[:count], nodes[count:]
        graph.call_function(torch._foreach_addcdiv_, (some, others, others))
        graph.call_function(torch._foreach_mul_, (some, 0.5))
        graph.output(())
        noted.clear()
        to_aten(fx.GraphModule({}, graph), [torch.rand(4) + 0.5 for _ in nodes])
        return len(noted)

    noted, note = [], Repeated.note

    def counted(self, call, nodes, result):
        noted.append(call)
        note(self, call, nodes, result)

    monkeypatch.setattr(Repeated, "note", counted)
    assert [recorded_for(count) for count in (1, 2, 8)] == [2, 2, 2]
