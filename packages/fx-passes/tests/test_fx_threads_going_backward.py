"""Backwards of other threads that come between the steps of a backward from the same call."""

from __future__ import annotations

import threading

import pytest
import torch
from test_fx_training import compiled, leaf

from plait_fx_passes.training.backwards import Backwards
from plait_fx_passes.training.calls import Call


def apart(x, y):
    return x.sin() * x, y.exp() + 1


def joined(x, y):
    return x.sin() * x, (x.cos() * y).exp()


def in_another_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


@pytest.fixture
def slip_in(monkeypatch):
    """What another thread does when a backward, which has found that nothing is freed, is about
    to ask for what is saved."""
    waiting = []
    own = Call.saved_tensors.fget

    def saved_tensors(call):
        if waiting:
            in_another_thread(waiting.pop())
        return own(call)

    monkeypatch.setattr(Call, "saved_tensors", property(saved_tensors))
    return waiting.append


@pytest.mark.parametrize("program", [apart, joined])
def test_one_that_frees_all_comes_first(program, slip_in):
    x, y = leaf(3), leaf(3)
    results = program(x, y)
    wanted = torch.autograd.grad([each.sum() for each in results], [x, y])
    run = compiled(program, [leaf(3), leaf(3)])
    total = sum(each.sum() for each in run(x, y))
    found = []
    slip_in(lambda: found.append(torch.autograd.grad(total, [x, y])))
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.grad(total, [x, y])
    torch.testing.assert_close(found, [wanted])


def test_one_that_frees_what_others_do_not_need_comes_first(slip_in):
    x, y = leaf(3), leaf(3)
    run = compiled(apart, [leaf(3), leaf(3)])
    one, other = run(x, y)
    found = []
    slip_in(lambda: found.extend(torch.autograd.grad(other.sum(), y)))
    found.extend(torch.autograd.grad(one.sum(), x))
    of_y, of_x = found
    torch.testing.assert_close(of_y, y.exp())
    torch.testing.assert_close(of_x, x.sin() + x * x.cos())


def test_what_another_frees_meanwhile_stays_freed(monkeypatch):
    run = compiled(apart, [leaf(3), leaf(3)])
    x, y = leaf(3), leaf(3)
    one, other = run(x, y)
    waiting = [lambda: torch.autograd.grad(other.sum(), y)]
    own = Backwards.run

    def slowly(self, *given):
        if waiting:
            in_another_thread(waiting.pop())
        return own(self, *given)

    monkeypatch.setattr(Backwards, "run", slowly)
    torch.autograd.grad(one.sum(), x)
    for each, leads_to in ((one, x), (other, y)):
        with pytest.raises(RuntimeError, match="a second time"):
            torch.autograd.grad(each.sum(), leads_to)
