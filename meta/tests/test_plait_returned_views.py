"""Views that a program returns, to autograd: code after the call finds what it does in eager."""

import itertools

import pytest
import torch

import plait


def turned_and_a_view(x):
    y = x.sin()
    y.swapaxes_(0, -1)
    return y, y.transpose(0, -1)


def turned_twice(x):
    y = x.topk(2)[0]
    y.t_()
    y.unsqueeze_(0)
    return y, y[0, 1:], y.sum()


def view_from_before(x):
    y = x * 2
    row = y[1]
    y.t_()
    return y, row


def turned_and_written(x):
    y = x.exp()
    y.t_()
    rows = y[1:]
    rows.mul_(2)
    return y, rows


def turned_and_parts(x):
    y = x.cos()
    y.t_()
    return (y, *y.unbind(1)[:2])


def turned_and_detached(x):
    y = x.cos()
    y.t_()
    return y.detach(), y


def turned_in_bits(x):
    y = torch.complex(x, x * 2)
    y.t_()
    return y, torch.view_as_real(y)


def old_view(x):
    x[:1] *= 3
    rows = x[::2]
    x.add_(1)
    return rows, x


def old_and_new_views(x):
    old = x[:, 1]
    x.mul_(2)
    new = x[:, 1]
    return old, new


def written_view(x):
    rows = x[1:]
    x.add_(1)
    rows.mul_(2)
    return rows, rows[0]


def view_and_all_of_it(x):
    whole = x.squeeze()
    return whole.unfold(0, 2, 1), whole


def whole_view_from_before(x):
    whole = x.expand_as(x)
    with torch.no_grad():
        x.mul_(x)
    return (whole,)


def nothing(returned, x):
    pass


def detach_input(returned, x):
    x.detach_()


def write_to_input(returned, x):
    x.mul_(3)


def write_to_first(returned, x):
    returned[0].mul_(2)


def turn_last(returned, x):
    returned[-1].t_()


TURNING = (
    *(turned_and_a_view, turned_twice, view_from_before, turned_and_written),
    *(turned_and_parts, turned_and_detached, turned_in_bits),
)
WRITING = (
    *(old_view, old_and_new_views, written_view, view_and_all_of_it, whole_view_from_before),
)


def _real_sum(tensor):
    return torch.view_as_real(tensor).sum() if tensor.is_complex() else (tensor * tensor).sum()


def _gradient(one, other):
    root = _real_sum(one)
    return torch.autograd.grad(root, other, allow_unused=True, retain_graph=True)[0]


def _asked(ask, *tensors):
    """What ``ask`` finds, or how autograd refuses."""
    try:
        return ask(*tensors)
    except RuntimeError as error:
        return str(error)[:40]


def _told(run, later):
    """What autograd knows of what ``run`` returns, after ``later``."""
    torch.manual_seed(0)
    leaf = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    x = leaf.sigmoid()
    returned = run(x)
    refusal = _asked(later, returned, x)
    if refusal is not None:
        return [refusal]
    tensors = [*returned, x, leaf]
    found = [_asked(lambda t: (t.requires_grad, t.is_leaf, t.shape), each) for each in tensors]
    found += [_asked(torch.Tensor.detach, each) for each in tensors]
    return found + [_asked(_gradient, *pair) for pair in itertools.permutations(tensors, 2)]


def _assert_alike(program, later):
    run = plait.compile(program)
    wanted = _told(program, later)
    for _ in range(2):
        for one, other in zip(_told(run, later), wanted, strict=True):
            if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
                torch.testing.assert_close(one, other)
            else:  # none, or what autograd says against it
                assert one == other


@pytest.mark.parametrize("later", [nothing, write_to_first, turn_last])
@pytest.mark.parametrize("program", TURNING)
@pytest.mark.sampled(3)
def test_what_was_turned_in_place_is_no_view(program, later):
    _assert_alike(program, later)


@pytest.mark.parametrize("later", [nothing, write_to_first, write_to_input, detach_input])
@pytest.mark.parametrize("program", WRITING)
@pytest.mark.sampled(3)
def test_views_from_before_a_write_follow_what_becomes_of_the_input(program, later):
    _assert_alike(program, later)


@pytest.mark.parametrize("program", [turned_and_a_view, view_from_before, old_and_new_views])
def test_such_programs_are_compiled(program):
    run = plait.compile(program)
    run(torch.randn(3, 3).requires_grad_().sigmoid())
    (graph,) = plait.report(run).graphs
    assert graph.kernels
    assert graph.reason is None


def test_views_of_what_becomes_a_leaf_later_are_followed():
    def program(x):
        rows = x[:1]
        rows.abs_()
        x.requires_grad_()
        return rows

    for run in (program, plait.compile(program)):
        x = torch.randn(3, 4)
        run(x).sum().backward()
        torch.testing.assert_close(x.grad, torch.eye(3, 1).expand(3, 4))


def test_hooks_on_views_of_everything_see_the_gradients_of_their_views():
    def program(x):
        whole = x.squeeze()
        return whole.unfold(0, 2, 1), whole

    found = []
    for run in (program, plait.compile(program)):
        x = torch.ones(3, 4, requires_grad=True)
        parts, whole = run(x)
        whole.register_hook(lambda given: given * 2)
        found.append(torch.autograd.grad(parts.sum(), x)[0])
    torch.testing.assert_close(*found)
