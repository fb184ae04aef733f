"""Loops whose steps run one behind the other without Python: what they give, and which do not."""

import threading

import pytest
import torch
from torch import nn
from torch._higher_order_ops.scan import scan

import plait
import plait.repeating

x = torch.randn(9, 3, 4)
WEIGHT = torch.randn(4, 4) / 2


@pytest.fixture
def asked(monkeypatch):
    """Of each loop that was to run natively, for how many rows, and whether it did."""
    found = []
    repeated = plait.repeating.Repeated.__call__

    def noting(self, places, *rest):
        made = repeated(self, places, *rest)
        found.append((len(places), made is not None))
        return made

    monkeypatch.setattr(plait.repeating.Repeated, "__call__", noting)
    return found


def meant(step, init, rows, reverse=False):
    """A scan, in Python."""
    given = []
    for row in reversed(rows.unbind(0)) if reverse else rows.unbind(0):
        init, one = step(init, row)
        given.append(one)
    given = given[::-1] if reverse else given
    if isinstance(given[0], tuple):
        return init, tuple(map(torch.stack, zip(*given, strict=True)))
    return init, torch.stack(given)


def plain(c, row):
    c = torch.tanh(c @ WEIGHT + row)
    return c, c * 2


def several(c, row):
    one, other = c
    one, other = one * 0.5 + row, other - row.sum(-1)
    return (one, other), (one.sin(), other > 0, (row * 8).to(torch.int32))


def turned(c, row):
    return c + row.t(), c.sum(1)


STEPS = {
    "plain": (plain, lambda: x[0] * 1, x),
    "several": (several, lambda: (x[0] * 1, torch.zeros(3)), x),
    "of rows that lie otherwise": (plain, lambda: x[0] * 1, torch.randn(3, 4, 9).permute(2, 0, 1)),
    "of one row again and again": (plain, lambda: x[0] * 1, x[:1].expand(9, 3, 4)),
    "of every second row": (plain, lambda: x[0] * 1, torch.randn(18, 3, 4)[::2]),
    "of bfloat16": (
        lambda c, row: (c + row, c * row),
        lambda: x[0].bfloat16(),
        x.bfloat16(),
    ),
    "of numbers": (lambda c, row: (c + row, c * 3), lambda: torch.zeros(()), torch.randn(9)),
    "of no elements": (lambda c, row: (c + row, c * row), lambda: x[0, :0] * 1, x[:, :0]),
}


def flat(value):
    return [value] if isinstance(value, torch.Tensor) else [t for each in value for t in flat(each)]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", STEPS)
def test_they_give_what_single_steps_do(name, reverse, asked):
    step, init, rows = STEPS[name]
    compiled = plait.compile(lambda rows: scan(step, init(), rows, reverse=reverse))
    for given in (rows, rows + 1):
        found, expected = flat(compiled(given)), flat(meant(step, init(), given, reverse))
        for one, eager in zip(found, expected, strict=True):
            torch.testing.assert_close(one, eager)
            assert one.stride() == eager.stride()
    assert asked == [(8, True)] * 2


def test_what_is_handed_on_in_another_order_is_laid_out_for_each_step(asked):
    rows = torch.randn(9, 4, 4)
    compiled = plait.compile(lambda rows: scan(turned, rows[0] * 1, rows))
    for one, eager in zip(compiled(rows), meant(turned, rows[0] * 1, rows), strict=True):
        torch.testing.assert_close(one, eager)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", ["plain", "of rows that lie otherwise"])
def test_gradients_are_those_of_single_steps(name, reverse, asked):
    step, init, rows = STEPS[name]
    rows = rows.detach().requires_grad_()

    def gradients(run):
        last, given = run(rows)
        loss = (last.sin() * last).sum() + (given.cos() * given).sum()
        (first,) = torch.autograd.grad(loss, rows, create_graph=True)
        return [last, given, first, *torch.autograd.grad(first.square().sum(), rows)]

    compiled = plait.compile(lambda rows: scan(step, init(), rows, reverse=reverse))
    expected = gradients(lambda rows: meant(step, init(), rows, reverse))
    torch.testing.assert_close(gradients(compiled), expected, rtol=1e-4, atol=2e-4)
    assert len(asked) >= 3
    assert all(ran for _, ran in asked)


@pytest.mark.parametrize("make", [nn.GRU, nn.RNN])
def test_recurrent_layers_run_so_and_train_so(make, asked):
    layer = make(6, 5, 2, batch_first=True, bidirectional=True)
    compiled = plait.compile(layer)
    given = torch.randn(4, 140, 6, requires_grad=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(given), layer(given))
    assert asked == [(139, True)] * 4
    wanted = [given, *layer.parameters()]
    found, expected = (
        torch.autograd.grad(run(given)[0].sin().sum(), wanted) for run in (compiled, layer)
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert asked[4:] == [(139, True)] * 8


def test_a_row_that_is_not_there_raises_as_in_eager_and_the_next_call_is_right(asked):
    table = torch.randn(5, 4)

    def step(c, at):
        return c + 1, c + torch.nn.functional.embedding(at, table)

    compiled = plait.compile(lambda places: scan(step, torch.zeros(4), places))
    places = torch.tensor([0, 3, 4, 2, 1])
    torch.testing.assert_close(compiled(places), meant(step, torch.zeros(4), places))
    with pytest.raises(IndexError):
        compiled(torch.tensor([0, 3, 5, 2, 1]))
    torch.testing.assert_close(compiled(places), meant(step, torch.zeros(4), places))
    assert asked == [(4, True), (4, False), (4, True)]


def test_operators_of_users_are_called_in_order(asked):
    called = []

    @torch.library.custom_op("plait_tests::noted", mutates_args=())
    def noted(value: torch.Tensor) -> torch.Tensor:
        called.append(value.clone())
        return value * 2

    noted.register_fake(torch.empty_like)
    compiled = plait.compile(lambda rows: scan(lambda c, row: (c + row, noted(c)), x[0] * 1, rows))
    for _ in range(2):
        called.clear()
        found = compiled(x)
        assert len(called) == len(x)
        expected = meant(lambda c, row: (c + row, c * 2), x[0] * 1, x)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.stack(called) * 2, expected[1])


def test_steps_that_draw_draw_as_in_python(asked):
    compiled = plait.compile(
        lambda rows: scan(lambda c, row: (c + torch.rand(3, 4), c * row), x[0] * 1, rows)
    )
    for seed in range(2):
        torch.manual_seed(seed)
        found = compiled(x)
        torch.manual_seed(seed)
        expected = meant(lambda c, row: (c + torch.rand(3, 4), c * row), x[0] * 1, x)
        torch.testing.assert_close(found, expected)
    assert asked == []


def test_threads_run_one_loop_at_once(asked):
    layer = nn.GRU(16, 16)
    compiled = plait.compile(layer)
    given = [torch.randn(150, 3, 16) for _ in range(4)]
    wrong = []

    def work(mine):
        with torch.no_grad():
            expected = layer(mine)
            for _ in range(30):
                found = compiled(mine)
                if not all(map(torch.allclose, found, expected, [1e-4] * 2, [1e-5] * 2)):
                    wrong.append(found)

    with torch.no_grad():
        compiled(given[0])
    threads = [threading.Thread(target=work, args=(each,)) for each in given]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong
    assert all(ran for _, ran in asked)
