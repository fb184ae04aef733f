"""The ``.data`` of an input that is set between forward and backward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from test_fx_training import compiled, leaf

PROGRAMS = {
    "a view": lambda x, w: F.linear(x, w).sin().sum(),
    "the input": lambda x, w: (x * w).sum(),
    "a view of a view": lambda x, w: (x @ w.t()[1:].t()).sin().sum(),
    "a detached one": lambda x, w: (x * w.detach()).sum() + w.sum(),
    "what is computed again": lambda x, w: (F.linear(x, w) * w.t().exp()).sum(),
    "the input, and what is computed again": lambda x, w: (x * w).sin().sum(),
    "of some results": lambda x, w: [(x * w).sin().sum(), (x + w).cos().sum()][0],
}


def gradients(program, set_data, *, wrap=compiled):
    torch.manual_seed(0)
    x, w = leaf(3, 3), leaf(3, 3)
    loss = (wrap(program, [x, w]) if wrap else program)(x, w)
    set_data(x, w)
    loss.backward(retain_graph=True)
    loss.backward()
    return x.grad, w.grad


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(
    "set_data",
    [
        lambda x, w: setattr(w, "data", torch.ones_like(w)),
        lambda x, w: (setattr(x, "data", torch.ones_like(x)), setattr(w, "data", x.data * 2)),
    ],
)
def test_gradients_are_of_what_eager_has_saved(name, set_data):
    wanted = gradients(PROGRAMS[name], set_data, wrap=None)
    torch.testing.assert_close(gradients(PROGRAMS[name], set_data), wanted)


def test_a_weight_may_get_another_dtype():
    def narrow(x, w):
        w.data = w.data.float()

    wanted = gradients(PROGRAMS["a view"], narrow, wrap=None)
    torch.testing.assert_close(gradients(PROGRAMS["a view"], narrow), wanted)


def test_where_eager_has_saved_a_view_and_the_input_it_raises():
    def program(x, w):
        return F.linear(x, w).sum() + (x * w).sum()

    with pytest.raises(RuntimeError, match="what it was and what it is"):
        gradients(program, lambda x, w: setattr(w, "data", torch.ones_like(w)))


def test_gradients_that_are_differentiated_raise():
    x, w = leaf(3, 3), leaf(3, 3)
    loss = compiled(PROGRAMS["a view"], [x, w])(x, w)
    w.data = torch.ones_like(w)
    with pytest.raises(RuntimeError, match="is differentiated"):
        torch.autograd.grad(loss, x, create_graph=True)


def test_a_view_goes_on_where_its_input_is_detached():
    x, w = leaf(3, 3), leaf(3, 3)
    moved = w * 2
    loss = compiled(PROGRAMS["a view"], [x, moved])(x, moved)
    moved.detach_()
    loss.backward()
    assert w.grad is not None
