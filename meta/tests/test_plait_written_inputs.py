"""Gradients of inputs that a compiled program writes to, asked of them after the call."""

from __future__ import annotations

import pytest
import torch

import plait


def block(x, weight):
    x.relu_()
    return torch.tanh(x @ weight)


def twice(x, weight):
    x.mul_(2)
    early = x + weight
    x.add_(weight)
    return early, x.exp().sum()


def a_row(x, weight):
    x[0] = weight[1]
    return x.exp()


def buffer_too(x, weight):
    x.add_(1)
    with torch.no_grad():
        weight.mul_(0.5)
    return x @ weight


def observe(run, make):
    torch.manual_seed(0)
    leaf = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    x, seen = make(leaf), []
    results = run(x, weight)
    x.register_hook(lambda grad: seen.append(grad.clone()) or grad * 2)
    x.retain_grad()
    results = results if isinstance(results, tuple) else (results,)
    loss = sum((each * each).sum() for each in results)
    found = torch.autograd.grad(loss, [x, weight], retain_graph=True, create_graph=True)
    (found[0] * found[0]).sum().backward(retain_graph=True)
    loss.backward()
    return found, seen, x, weight, x.grad, leaf.grad, weight.grad


@pytest.mark.parametrize("backend", ["plait", "dumping"])
@pytest.mark.parametrize("program", [block, twice, a_row, buffer_too], ids=lambda p: p.__name__)
@pytest.mark.sampled(2)
def test_gradients_by_what_was_written(program, backend, monkeypatch, tmp_path):
    monkeypatch.setenv("PLAIT_DUMP_DIR", str(tmp_path))
    for make in (lambda leaf: leaf * 1.5, lambda leaf: (leaf * 1.5).t()):
        run = plait.compile(program, backend=backend)
        torch.testing.assert_close(observe(run, make), observe(program, make))


def test_each_piece_has_a_record():
    run = plait.compile(twice)
    observe(run, lambda leaf: leaf * 1.5)
    names = [each.name for each in plait.report(run).graphs]
    assert [name for name in names if "backward" not in name and "gradients" not in name] == [
        "twice-0.piece-1", "twice-0.piece-2", "twice-0.piece-3", "twice-0",
    ]  # fmt: skip
    found = {each.name: each.pieces for each in plait.report(run).graphs if each.pieces}
    why = "gradients of its results come through what it writes to an input"
    assert found == {"twice-0": f"in 3 pieces: {why}"}
    assert f"in 3 pieces: {why}" in str(plait.report(run))


def test_verified_pieces():
    run = plait.compile(twice, options={"verify": 2})
    torch.testing.assert_close(
        observe(run, lambda leaf: leaf * 1.5), observe(twice, lambda leaf: leaf * 1.5)
    )


def test_a_view_of_what_was_written_without_gradients_can_be_used():
    """Autograd refuses views of a leaf that were taken before it was changed."""

    def program(x):
        with torch.no_grad():
            x.fill_(0.5)
            return x[0], x.t()

    weight = torch.randn(3, 3, requires_grad=True)
    row, turned = plait.compile(program)(weight)
    assert [each.grad_fn for each in (row, turned)] == [None, None]
    assert row._version == weight._version == 1
    torch.testing.assert_close((row * 2).detach(), torch.ones(3))
