"""Eager's random numbers of a GPU, which kernels compute."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import plait
from plait.options import CompileOptions
from plait_utils.philox_agreement import Kind, agreeing

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
PASS = "device-draws"


def chain(x, y):
    return F.dropout(F.gelu(x), 0.3) + y


def several(x, y):
    a = F.dropout((x * 2).relu(), 0.3)
    b = F.dropout((x + y).t(), 0.2)
    return a, b, torch.rand_like(a), x.new_empty(3, 5).bernoulli_(0.5), torch.randn_like(x)


def behind(x, y):
    return F.dropout(torch.randn_like(x) + y, 0.5), x.new_empty(1001).uniform_(-1, 1)


def _names(**options):
    return [each.name for each in CompileOptions(**options).passes()]


def test_what_is_compared_draws_by_operators():
    assert PASS in _names()
    for other in ({"numerics": "strict"}, {"verify": 1}, {"random": "counter"}):
        assert PASS not in _names(**other)


def test_on_a_cpu_operators_draw():
    run, x = plait.compile(lambda x: torch.rand_like(x) + x), torch.ones(40)
    torch.manual_seed(3)
    wanted = torch.rand_like(x) + x
    torch.manual_seed(3)
    assert torch.equal(run(x), wanted)


def _seeded(function, *given, offset=0):
    torch.cuda.manual_seed(1234)
    generator = torch.cuda.default_generators[0]
    generator.set_offset(offset)
    made = function(*given)
    return made if isinstance(made, tuple) else (made,), generator.get_offset()


def _draws_alike(wanted, found):
    for one, other in zip(wanted, found, strict=True):
        assert torch.equal(one == 0, other == 0)
        torch.testing.assert_close(other, one)


@on_gpu
def test_this_gpu_draws_what_is_known():
    assert agreeing(torch.device("cuda", 0)) == frozenset(Kind)


@on_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [(8, 16), (7, 9), (1031, 2048)], ids=str)
@pytest.mark.parametrize("function", [chain, several, behind])
def test_numbers_are_eagers(function, size, dtype):
    x, y = (torch.randn(size, device="cuda").to(dtype) for _ in range(2))
    run = plait.compile(function)
    for offset in (0, 4, 12):
        wanted, end = _seeded(function, x, y, offset=offset)
        found, moved = _seeded(run, x, y, offset=offset)
        _draws_alike(wanted, found)
        assert moved == end
    assert not plait.report(run).eager_graphs


@on_gpu
@pytest.mark.parametrize("budget", [None, 0, 1])
def test_gradients_have_the_numbers_of_their_forward(budget):
    run = plait.compile(chain, options={"memory_budget": budget})
    results = []
    for each in (chain, run):
        x, y = (torch.ones(300, 512, device="cuda").mul_(n).requires_grad_() for n in (1, 2))
        (made,), _ = _seeded(each, x, y)
        results.append((made.detach(), *torch.autograd.grad(made.square().sum(), (x, y))))
    _draws_alike(*results)


@on_gpu
@pytest.mark.parametrize("first", [0, 8, 4, 1])
def test_inputs_may_begin_anywhere(first):
    x = torch.randn(4096 + first, device="cuda")[first:]
    run = plait.compile(lambda x: F.dropout(x, 0.3))
    wanted, end = _seeded(F.dropout, x, 0.3)
    found, moved = _seeded(run, x)
    _draws_alike(wanted, found)
    assert moved == end


@on_gpu
def test_recorded_programs_draw_anew_in_each_call():
    x, y = (torch.randn(64, 96, device="cuda") for _ in range(2))
    run = plait.compile(chain, mode="reduce-overhead")
    torch.cuda.manual_seed(7)
    wanted = [chain(x, y) for _ in range(9)]
    torch.cuda.manual_seed(7)
    for each in wanted:
        _draws_alike((each,), (run(x, y),))
    assert "1 recorded" in str(plait.report(run).graphs[0].cuda_graphs)


@on_gpu
def test_a_graph_of_the_users_draws_anew_in_each_replay():
    x, y = (torch.randn(64, 96, device="cuda") for _ in range(2))
    run = plait.compile(chain)
    run(x, y)
    made = []
    for each in (chain, run):
        torch.cuda.manual_seed(7)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = each(x, y)
        replays = []
        for _ in range(3):
            graph.replay()
            replays.append(out.clone())
        made.append(replays)
    _draws_alike(*made)
