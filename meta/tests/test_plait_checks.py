"""Asserts on data through the whole compiler: an external call in the program, in the forward."""

import pytest
import torch

import plait


def _checked(x, weight):
    y = x @ weight
    if torch.isnan(y).any():
        raise ValueError("not a number")
    return (y * y).sum()


@pytest.mark.parametrize("backend", ["plait", "python", "eager"])
def test_a_check_is_in_the_program(backend):
    fast = plait.compile(_checked, backend=backend, fullgraph=True)
    x, weight = torch.rand(3, 4), torch.rand(4, 2)
    for _ in range(2):
        assert torch.allclose(fast(x, weight), _checked(x, weight))
        for _ in range(3):
            with pytest.raises(ValueError, match="not a number"):
                fast(x * float("nan"), weight)


def test_a_check_is_in_the_forward():
    fast = plait.compile(_checked, fullgraph=True)
    x, weight = torch.rand(3, 4), torch.rand(4, 2, requires_grad=True)
    fast(x, weight).backward()
    expected = torch.autograd.grad(_checked(x, weight), weight)[0]
    assert torch.allclose(weight.grad, expected)
    with pytest.raises(ValueError, match="not a number"):
        fast(x * float("nan"), weight)


def test_inputs_are_changed_after_the_check():
    def step(x, total):
        y = x.exp()
        assert (y < 100).all()
        total.add_(y)
        assert (y > 1).all()
        return y

    def plain(x, total):
        y = x.exp()
        if (y >= 100).any():
            raise OverflowError(f"{y.max():.0f}")
        total.add_(y)
        return y

    fast = plait.compile(plain, fullgraph=True)
    for factor in (1, 9, 2, 8):
        total, wanted = torch.ones(3), torch.ones(3)
        x = torch.tensor([0.5, 1.0, 1.5]) * factor
        outcomes = []
        for program, changed in ((plain, wanted), (fast, total)):
            try:
                outcomes.append(program(x, changed).sum().item())
            except OverflowError as error:
                outcomes.append(str(error))
        assert outcomes[0] == pytest.approx(outcomes[1])
        assert torch.allclose(total, wanted)
    twice = plait.compile(step)
    total = torch.zeros(2)
    with pytest.raises(AssertionError):
        twice(torch.tensor([-1.0, 2.0]), total)
    assert torch.allclose(total, torch.tensor([-1.0, 2.0]).exp())
    assert not twice.breaks


def test_sizes_that_change():
    def program(x):
        assert (x > 0).all(), f"{x.shape[0]} values"
        return x * x.shape[0]

    fast = plait.compile(program, dynamic=True, fullgraph=True)
    for size in (3, 4, 7):
        x = torch.ones(size)
        assert fast(x).sum() == size * size
        with pytest.raises(AssertionError, match=f"{size} values"):
            fast(-x)


def test_distributions_are_checked_without_a_break():
    def program(mean, scale, value):
        normal = torch.distributions.Normal(mean, scale)
        return normal.log_prob(value)

    fast = plait.compile(program, fullgraph=True)
    given = torch.zeros(2), torch.ones(2), torch.rand(2)
    assert torch.allclose(fast(*given), program(*given))
    with pytest.raises(ValueError, match="scale"):
        fast(given[0], -given[1], given[2])


def test_lint_lists_no_check():
    assert not plait.lint(_checked, torch.rand(3, 4), torch.rand(4, 2)).breaks


def test_a_check_after_a_batch_norm_in_training():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(3)

        def forward(self, x):
            y = self.norm(x)
            if torch.isnan(y).any():
                raise ValueError("not a number")
            return y.square().sum()

    plain, model = Model(), Model()
    fast = plait.compile(model, fullgraph=True)
    for factor in (1.0, float("nan"), 2.0):
        x = torch.rand(4, 3) * factor
        outcomes = []
        for module in (plain, fast):
            try:
                loss = module(x)
                loss.backward()
                outcomes.append(loss.item())
            except ValueError as error:
                outcomes.append(str(error))
        assert outcomes[0] == pytest.approx(outcomes[1])
        for one, other in zip(plain.state_dict().values(), fast.state_dict().values(), strict=True):
            assert torch.allclose(one, other, equal_nan=True)
        assert torch.allclose(plain.norm.weight.grad, model.norm.weight.grad, atol=1e-4)


def test_numbers_that_are_compared():
    def program(ids, table):
        if ids.max().item() >= table.shape[0] or ids.min().item() < 0:
            raise IndexError(f"{ids.tolist()}")
        return table[ids]

    fast = plait.compile(program, fullgraph=True)
    table = torch.arange(4.0)
    for _ in range(2):
        assert fast(torch.tensor([0, 3]), table).tolist() == [0, 3]
        for bad in ([0, 4], [-1, 2]):
            with pytest.raises(IndexError, match=str(bad)[1:-1]):
                fast(torch.tensor(bad), table)


@pytest.mark.parametrize("limit", [8, 2])
def test_a_step_with_a_check_and_numbers_that_change(limit):
    """A distribution tests its parameters; Adam counts; what a bad batch leaves is eager's."""

    def training():
        torch.manual_seed(0)
        encoder = torch.nn.Linear(3, 4)
        optimizer = torch.optim.Adam(encoder.parameters(), lr=0.01)

        def step(x, factor):
            mean, deviation = encoder(x).chunk(2, -1)
            drawn = torch.distributions.Normal(mean, deviation.exp() * factor).rsample()
            loss = drawn.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if loss > 1e6:
                raise OverflowError(f"{loss:.3g}")
            return loss.detach()

        return step, encoder, optimizer

    (eager, wanted, optimizer), (step, encoder, other) = training(), training()
    fast = plait.compile(step, options={"shape_limit": limit})
    generator = torch.Generator().manual_seed(1)
    for size, factor in ((5, 1.0), (5, 1.0), (5, -1.0), (6, 1.0), (7, 1e5), (7, 1.0), (7, -1.0)):
        x = torch.rand(size, 3, generator=generator)
        results = []
        for each in (eager, fast):
            torch.manual_seed(2)
            try:
                results.append(each(x, torch.tensor(factor)).item())
            except (ValueError, OverflowError) as error:
                results.append((type(error), str(error)))
        assert results[0] == pytest.approx(results[1])
        for one, two in zip(wanted.parameters(), encoder.parameters(), strict=True):
            torch.testing.assert_close(one, two)
    torch.testing.assert_close(
        list(optimizer.state_dict()["state"].values()), list(other.state_dict()["state"].values())
    )
    assert not plait.report(fast).breaks
