"""`mode="reduce-overhead"`: what it chooses, and that models run as eager does with it on a GPU."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from torch import nn

import plait
from plait.arguments import check_arguments

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
ENOUGH = 12
"""Calls after which a program is recorded, whatever moves."""


def options_of(mode, **options):
    return check_arguments(False, None, mode, None, options).options


def test_modes_choose_graphs_where_nobody_else_has(monkeypatch):
    monkeypatch.delenv("PLAIT_CUDA_GRAPHS", raising=False)
    assert options_of("reduce-overhead").cuda_graphs
    assert options_of("max-autotune").cuda_graphs
    for mode in ("default", "fast-compile", "max-autotune-no-cudagraphs"):
        assert not options_of(mode).cuda_graphs
    assert not options_of("reduce-overhead", cuda_graphs=False).cuda_graphs
    monkeypatch.setenv("PLAIT_CUDA_GRAPHS", "0")
    assert not options_of("reduce-overhead").cuda_graphs


def test_on_the_cpu_nothing_is_told_of_graphs():
    fast = plait.compile(torch.tanh, mode="reduce-overhead")
    fast(torch.ones(8))
    assert plait.report(fast).graphs[0].cuda_graphs is None
    assert "CUDA" not in str(plait.report(fast))


def _mlp(dropout: float = 0.0) -> nn.Module:
    layers = nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Dropout(dropout), nn.Linear(64, 16)
    return nn.Sequential(*layers).cuda()


def _told(fast) -> str:
    return "\n".join(str(graph.cuda_graphs) for graph in plait.report(fast).graphs)


@on_gpu
def test_inference_keeps_what_it_has_given():
    model = _mlp().eval()
    fast = plait.compile(model, mode="reduce-overhead")
    with torch.no_grad():
        given = [torch.randn(8, 32, device="cuda") for _ in range(3 * ENOUGH)]
        kept = [fast(each) for each in given]
        for each, got in zip(given, kept, strict=True):
            torch.testing.assert_close(got, model(each), rtol=2e-3, atol=2e-3)
    assert "recorded" in str(plait.report(fast))


@on_gpu
def test_training_goes_as_eager_does():
    torch.manual_seed(0)
    model = _mlp()
    other = copy.deepcopy(model)
    fast = plait.compile(other, mode="reduce-overhead")
    steps = [torch.optim.AdamW(each.parameters(), lr=1e-2) for each in (model, other)]
    for turn in range(3 * ENOUGH):
        batches = [torch.randn(8, 32, device="cuda") for _ in range(2)]
        losses = []
        for run, step in zip((model, fast), steps, strict=True):
            step.zero_grad(set_to_none=turn % 2 == 0)
            # Two forwards before a backward: what the first has saved must stay.
            loss = sum(run(batch).square().mean() for batch in batches)
            loss.backward()
            step.step()
            losses.append(loss.detach())
        torch.testing.assert_close(*losses, rtol=2e-2, atol=1e-3)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=5e-2, atol=5e-3)
    assert " recorded" in _told(fast).replace("none recorded", "")


@on_gpu
def test_batch_norms_change_their_buffers():
    model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU()).cuda()
    other = copy.deepcopy(model)
    fast = plait.compile(other, mode="reduce-overhead")
    for _ in range(ENOUGH):
        x = torch.randn(64, 32, device="cuda")
        torch.testing.assert_close(fast(x), model(x), rtol=2e-3, atol=2e-3)
        fast(x).sum().backward()
        model(x).sum().backward()
    for one, two in zip(model.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(one, two, rtol=2e-3, atol=2e-3)


@on_gpu
def test_dropout_draws_eagers_numbers():
    model = _mlp(dropout=0.5).train()
    fast = plait.compile(model, mode="reduce-overhead")
    x = torch.randn(8, 32, device="cuda")
    seen = []
    for run in (model, fast):
        torch.manual_seed(0)
        with torch.no_grad():
            seen.append([run(x) for _ in range(ENOUGH)])
    for one, two in zip(*seen, strict=True):
        torch.testing.assert_close(one, two, rtol=2e-3, atol=2e-3)


@on_gpu
def test_sizes_that_change_and_numbers_of_the_cpu():
    def program(x, scale):
        return (x * scale).softmax(-1) @ x.t()

    fast = plait.compile(program, mode="reduce-overhead", dynamic=True)
    scale = torch.tensor(2.0)
    for turn in range(3 * ENOUGH):
        x = torch.randn(8 + turn % 3, 16, device="cuda")
        scale.fill_(1.0 + turn)
        torch.testing.assert_close(fast(x, scale), program(x, scale), rtol=2e-3, atol=2e-3)
        torch.testing.assert_close(
            fast(x, 0.5 * turn), program(x, 0.5 * turn), rtol=2e-3, atol=2e-3
        )


@on_gpu
def test_threads_call_and_train_one_model():
    model = _mlp()
    fast = plait.compile(model, mode="reduce-overhead")
    wrong = []

    def work(number: int) -> None:
        try:
            with torch.cuda.stream(
                torch.cuda.Stream() if number % 2 else torch.cuda.default_stream()
            ):
                for _ in range(2 * ENOUGH):
                    x = torch.randn(8, 32, device="cuda", requires_grad=True)
                    got = fast(x)
                    wanted = model(x)
                    torch.testing.assert_close(got, wanted, rtol=2e-3, atol=2e-3)
                    (one,) = torch.autograd.grad(got.square().sum(), x)
                    (two,) = torch.autograd.grad(wanted.square().sum(), x)
                    torch.testing.assert_close(one, two, rtol=5e-3, atol=5e-3)
        except BaseException as error:
            wrong.append(error)

    fast(torch.randn(8, 32, device="cuda", requires_grad=True)).sum().backward()
    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]
