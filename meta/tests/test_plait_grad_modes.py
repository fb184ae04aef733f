"""Programs that switch gradients themselves, also where a break lies between the switches."""

import pytest
import torch
from torch import nn

import plait


def breaks():
    torch.zeros(1).untyped_storage()


def after_a_break_without_gradients(x):
    with torch.no_grad():
        breaks()
        scale = x.sum()
    return x.tanh() * scale


def written_after_a_break(x):
    y = x * 2
    with torch.no_grad():
        breaks()
        y.mul_(2)
    y.mul_(x)
    return y, y[:1]


def enabled_inside(x):
    with torch.enable_grad():
        y = x.tanh()
    return y, x * 2, y.detach() * 3


def disabled_again_after_a_break(x):
    with torch.no_grad():
        breaks()
        with torch.enable_grad():
            y = x.sin()
        z = y * 2
    return y, z, z + x


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize(
    "program",
    [
        after_a_break_without_gradients,
        written_after_a_break,
        enabled_inside,
        disabled_again_after_a_break,
    ],
)
def test_gradients_to_any_order_are_those_of_eager(program, enabled):
    fast = plait.compile(program, backend="python")
    seen = []
    for run in (program, fast, fast):
        with torch.set_grad_enabled(True):
            x = torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3).requires_grad_()
            given = x * 1
        with torch.set_grad_enabled(enabled):
            outputs = run(given)
            assert torch.is_grad_enabled() is enabled
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        flags = [each.requires_grad for each in outputs]
        needing = [each.sin().sum() for each in outputs if each.requires_grad]
        first, second = None, None
        if needing:
            (first,) = torch.autograd.grad(sum(needing), x, create_graph=True)
            (second,) = torch.autograd.grad(first.sin().sum(), x)
        seen.append((flags, [each.detach() for each in outputs], first, second))
    for each in seen[1:]:
        assert each[0] == seen[0][0]
        torch.testing.assert_close(each[1:], seen[0][1:])


@pytest.mark.parametrize("with_gradients", [True, False])
def test_autocast_ends_where_its_block_does_after_a_break_inside(with_gradients):
    torch.manual_seed(0)
    model = nn.Linear(4, 3)

    def step(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = model(x)
            is_large = y.sum().item() > 1e6
            z = y @ y.mT
        return z, is_large

    compiled = plait.compile(step)
    for _ in range(2):
        x = torch.randn(5, 4)
        with torch.set_grad_enabled(with_gradients):
            found, wanted = compiled(x), step(x)
        assert not torch.is_autocast_enabled("cpu")
        assert found[0].dtype == wanted[0].dtype == torch.bfloat16
        torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)
    assert not any("autocast" in each.reason for each in plait.report(compiled).recompiles)


def test_views_of_what_begins_to_need_gradients_need_some_too():
    def program(x, y):
        x.requires_grad_()
        return x.softmax(-1), y.cumsum(0)

    run = plait.compile(program, dynamic=False)
    for view in (lambda x: x.t(), lambda x: torch.ones(3, 4), lambda x: x[1:], lambda x: x + 1):
        found = []
        for each in (program, run):
            x = torch.ones(3, 4)
            found.append([one.requires_grad for one in (*each(x, view(x)), x)])
        assert found[1] == found[0]


def test_what_is_detached_in_place_may_be_written_to_with_gradients():
    def program(x, y):
        x.detach_()
        x.mul_(y)
        return x.sin()

    run = plait.compile(program, dynamic=False)
    found = []
    for each in (program, run, run):
        x, y = (torch.full((3,), float(n + 2)).requires_grad_() for n in range(2))
        each(x, y).sum().backward()
        found.append((x.detach().clone(), x.is_leaf, y.grad))
    for one in found[1:]:
        assert one[1] is found[0][1]
        torch.testing.assert_close((one[0], one[2]), (found[0][0], found[0][2]))


def view_of_an_input_that_becomes_a_leaf(x):
    with torch.no_grad():
        rows = x[:2]
    rows.requires_grad_()
    return x * 2, rows.t()


def view_of_a_result_that_becomes_a_leaf(x):
    y = x * 2
    with torch.no_grad():
        rows = y[:2]
    rows.requires_grad_()
    return y, rows.t() * 3


@pytest.mark.parametrize("needs", [False, True])
@pytest.mark.parametrize(
    "program", [view_of_an_input_that_becomes_a_leaf, view_of_a_result_that_becomes_a_leaf]
)
def test_gradients_end_at_a_view_that_becomes_a_leaf(program, needs):
    found = []
    for run in (program, plait.compile(program, dynamic=False)):
        x = torch.ones(3, 4, requires_grad=needs)
        results = run(x)
        sum(each.sum() for each in results if each.requires_grad).backward()
        found.append(([each.requires_grad for each in results], x.grad))
    assert found[1][0] == found[0][0]
    assert (found[1][1] is None) is (found[0][1] is None)
    if found[0][1] is not None:
        torch.testing.assert_close(found[1][1], found[0][1])
