"""Leaves of autograd that a program makes, and views of them, as it returns them."""

from __future__ import annotations

import pytest
import torch
from fx_oracle import trace

from plait_fx_passes import AtenTraceError, run_passes, to_joint, verify, wrap_runtime


def windows(x):
    made = x.abs()
    made.requires_grad_()
    return made.unfold(0, 2, 1)


def view_and_leaf(x):
    made = x.abs()
    made.requires_grad_()
    return made[0], made


def leaf_and_cut(x):
    made = x.abs().requires_grad_()
    return made, made.detach()[1:]


def of_another(x):
    return (x * 2).t().detach().requires_grad_()


def compiled(program, x):
    graph = run_passes(to_joint(trace(program), [x]).program, verify_each=True)
    verify(graph)
    return wrap_runtime(graph, graph.module())


def flat(found):
    return list(found) if isinstance(found, tuple) else [found]


@pytest.mark.parametrize("program", [windows, view_and_leaf, leaf_and_cut, of_another])
def test_what_is_returned_needs_gradients_and_shares_memory_as_in_eager(program):
    x = torch.linspace(-1, 1, 12).view(3, 4)
    run = compiled(program, x)
    for _ in range(2):
        got, wanted = flat(run(x)), flat(program(x))
        torch.testing.assert_close(got, wanted)
        for one, other in zip(got, wanted, strict=True):
            assert (one.requires_grad, one.is_leaf) == (other.requires_grad, other.is_leaf)
            assert one.stride() == other.stride()
    storages = {each.untyped_storage().data_ptr() for each in got}
    assert len(storages) == len({each.untyped_storage().data_ptr() for each in wanted})


def test_gradients_of_a_view_arrive_at_the_leaf():
    x = torch.linspace(-1, 1, 12).view(3, 4)
    gradients = []
    for run in (view_and_leaf, compiled(view_and_leaf, x)):
        row, made = run(x)
        row.sum().backward()
        gradients.append(made.grad)
    assert gradients[0] is not None
    torch.testing.assert_close(gradients[1], gradients[0])


def test_a_view_of_a_view_that_became_a_leaf_is_refused():
    # Its gradients end at that leaf, which the caller does not see.
    def program(x):
        rows = x[:2]
        rows.requires_grad_()
        return rows.t()

    with pytest.raises(AtenTraceError, match="need gradients of its own"):
        to_joint(trace(program), [torch.ones(3, 4)])


def test_a_view_that_was_taken_before_its_base_became_a_leaf_is_refused():
    def program(x):
        made = x.abs()
        part = made.split([1, 2])[1]
        made.requires_grad_()
        return part, made

    with pytest.raises(AtenTraceError, match="made a leaf after"):
        to_joint(trace(program), [torch.ones(3, 4)])
