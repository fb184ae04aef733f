"""Tensors that get another geometry in place are no views, and can be detached in place."""

from __future__ import annotations

import pytest
import torch

from plait_bytecode_tracer import CompiledFunction


def trace(program):
    return CompiledFunction(program, lambda module, *_: module.forward)


def transposed(x):
    v = x * 2
    v.t_()
    return v.detach_(), v._is_view(), x.sin()


def without_gradients(x):
    with torch.no_grad():
        v = x.amax(-1)
        v.t_()
    v.detach_()
    return v, v._is_view(), v + 1


def twice(x):
    v = torch.ones(2, 3)
    v.unsqueeze_(0)
    v.swapaxes_(0, -1)
    v.detach_()
    return v * x.sum(), v._is_view()


@pytest.mark.parametrize("program", [transposed, without_gradients, twice])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_it_is_detached(program, requires_grad):
    x = torch.arange(12.0).reshape(3, 4).requires_grad_(requires_grad)
    wanted, got = program(x), trace(program)(x)
    assert [type(each) for each in got] == [type(each) for each in wanted]
    torch.testing.assert_close(
        [each for each in got if isinstance(each, torch.Tensor)],
        [each for each in wanted if isinstance(each, torch.Tensor)],
    )
    assert [each for each in got if each is False] == [each for each in wanted if each is False]


def test_a_view_is_not_detached_in_place():
    def program(x):
        v = (x * 2)[0]
        v.unsqueeze_(0)
        return v.detach_(), x.sin()

    for run in (program, trace(program)):
        with pytest.raises(RuntimeError, match="Can't detach views in-place"):
            run(torch.ones(2, 3))


def test_detaching_in_place_is_no_change_that_autograd_counts():
    def program(x):
        plain = x.detach()
        x.sigmoid_()
        plain.detach_()
        return x

    for run in (program, trace(program)):
        leaf = torch.linspace(-1, 1, 4).requires_grad_()
        run(leaf * 2).sum().backward()
        assert leaf.grad is not None
