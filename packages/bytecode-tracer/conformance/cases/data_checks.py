"""What programs assert of data, and raise: a check in the graph, which holds for some calls."""

from __future__ import annotations

import contextlib
import logging
import random

import torch
from torch import nn

from conformance.declare import case, t

_logger = logging.getLogger("conformance.data_checks")
NAN = float("nan")


def _good_and_bad():
    """Tensors that hold what most cases assert, and such that do not, and back."""
    return [
        (torch.tensor(v),) for v in ([1.0, 2.0], [3.0, 4.0], [-1.0, 2.0], [5.0, 6.0], [NAN, 1.0])
    ]


def _with_list():
    return [(x, []) for (x,) in _good_and_bad()]


def _with_buffer():
    return [(x, torch.zeros(2)) for (x,) in _good_and_bad()]


@case(_good_and_bad)
def asserted(x):
    assert (x > 0).all()
    return x * 2


@case(_good_and_bad)
def asserted_with_a_message(x):
    assert (x > 0).all(), f"positive values wanted, not {x.min().item():.2f}"
    return x.log()


@case(_good_and_bad, traceback=True)
def raised(x):
    y = x.exp()
    if torch.isnan(y).any():
        raise ValueError("not a number")
    return y + 1


@case(_good_and_bad)
def raised_unless(x):
    valid = x > 0
    if not valid.all():
        bad = x[~valid]
        raise ValueError(f"{bad.numel()} of {x.numel()} values are bad: {bad.tolist()}")
    return x.sqrt()


@case(_good_and_bad)
def raised_by_bool(x):
    if bool((x < 0).any()):
        raise RuntimeError("negative")
    return x + 1


@case(_good_and_bad)
def raised_by_item(x):
    if (x < 0).any().item():
        raise RuntimeError("negative")
    return x + 1


@case(_good_and_bad)
def raised_by_a_count(x):
    if (x < 0).sum().item():
        raise RuntimeError("negative")
    return x + 1


@case(_good_and_bad)
def raised_by_a_number(x):
    if x.max().item() > 4.5:
        raise RuntimeError("too big")
    return x + 1


@case(_good_and_bad)
def raised_by_comparison_with_a_bool(x):
    if (x > 0).all().item() is False:
        raise RuntimeError("negative")
    if bool((x > 4).any()) == True:  # noqa: E712  # as programs have it
        raise RuntimeError("big")
    return x + 1


@case(_good_and_bad)
def kept_in_a_variable(x):
    fine = bool((x > 0).all())
    y = x * 2
    if not fine:
        raise ValueError("negative")
    return y, fine


def _is_fine(x):
    return bool((x > 0).all())


@case(_good_and_bad)
def told_by_a_function(x):
    if not _is_fine(x):
        raise ValueError("negative")
    return x.sqrt()


def _require(condition, text):
    if not condition:
        raise ValueError(text)


@case(_good_and_bad)
def required_by_a_function(x):
    _require((x > 0).all(), "positive")
    _require(x.sum() < 10, "small")
    return x.sqrt()


def _refuse(x, why):
    raise ValueError(f"{why}: {x.tolist()}")


@case(_good_and_bad)
def refused_by_a_function(x):
    if (x < 0).any():
        _refuse(x, "negative")
    return x.sqrt()


@case(_good_and_bad)
def one_of_two(x):
    if (x < 0).any() or torch.isnan(x).any():
        raise ValueError("bad")
    return x + 2


@case(_good_and_bad)
def two_at_once(x):
    assert (x > -2).all() and not torch.isnan(x).any(), "bad"
    return x + 2


@case(_good_and_bad)
def both_together(x):
    if (x > 0).any() and (x < 0).any():
        raise ValueError("mixed")
    return x + 2


@case(_good_and_bad)
def chained(x):
    assert 0 < x.min() <= x.max() < 5.5, "out of range"
    return x + 2


@case(_good_and_bad)
def all_of_some(x):
    assert all((part > 0).all() for part in x.split(1))
    if any(torch.isnan(part).any() for part in x):
        raise ValueError("nan")
    return x * 3


@case(_good_and_bad)
def caught(x):
    try:
        assert (x > 0).all()
        y = x.log()
    except AssertionError:
        y = x.abs()
    return y + 1


@case(_with_list)
def caught_with_effects(x, seen):
    seen.append("begun")
    try:
        seen.append("tried")
        if torch.isnan(x).any():
            raise ValueError("nan")
        y = x * 2
    except ValueError as error:
        seen.append(str(error))
        y = torch.zeros_like(x)
    else:
        seen.append("fine")
    finally:
        seen.append("left")
    return y


@case(_with_list)
def finally_after(x, seen):
    try:
        assert (x > 0).all(), "negative"
        seen.append(x.sum())
        return x
    finally:
        seen.append("left")


@case(_with_list)
def effects_before(x, seen):
    seen.append(x * 2)
    if (x < 0).any():
        raise ValueError("negative")
    seen.append(x * 3)
    return x


@case(_with_list)
def raised_from_another(x, seen):
    try:
        try:
            assert (x > 0).all(), "first"
        except AssertionError as error:
            raise KeyError("second") from error
    except KeyError as error:
        seen.append(repr(error.__cause__))
        return x.abs()
    return x


@case(_good_and_bad)
def printed_before(x):
    print("sum", x.shape)
    if torch.isnan(x).any():
        raise ValueError("nan")
    print("fine")
    return x


@case(_good_and_bad)
def logged_before(x):
    _logger.warning("begun")
    assert (x > 0).all()
    _logger.warning("ended")
    return x * 2


@case(_with_buffer)
def changed_after(x, buffer):
    assert (x > 0).all(), "negative"
    buffer.add_(x)
    return buffer * 2


@case(_with_buffer)
def changed_before(x, buffer):
    buffer.add_(1)
    assert (x > 0).all(), "negative"
    buffer.mul_(2)
    return buffer + x


@case(_with_buffer)
def changed_between(x, buffer):
    assert (x > -2).all(), "very negative"
    buffer.add_(1)
    assert (x > 0).all(), "negative"
    buffer.mul_(2)
    return buffer + x


@case(_with_buffer)
def own_tensor_changed_before(x, buffer):
    y = x.clone()
    y.mul_(2)
    y[0] += 1
    assert (y > 0).all()
    buffer.copy_(y)
    return y


@case(_with_buffer)
def asserted_of_what_is_changed(x, buffer):
    buffer += x
    if (buffer < 0).any():
        raise ValueError(f"{buffer.tolist()}")
    return buffer + 1


@case(_good_and_bad)
def drawn_before(x):
    noise = torch.rand(2)
    assert (x > 0).all()
    return x + noise + torch.rand(2)


@case(_good_and_bad)
def drawn_and_caught(x):
    noise = torch.rand(2)
    try:
        assert (x > 0).all()
    except AssertionError:
        return noise, torch.rand(1)
    return x + torch.rand(2), noise


@case(_good_and_bad)
def seeded_after(x):
    assert (x > 0).all()
    torch.manual_seed(3)
    return x + torch.rand(2)


@case(_good_and_bad)
def seeded_before(x):
    torch.manual_seed(3)
    noise = torch.rand(2)
    assert (x > 0).all()
    return x + noise


@case(_good_and_bad)
def pythons_random_numbers(x):
    first = random.random()
    assert (x > 0).all()
    return x + first + random.random()


@case(lambda: [(x, iter(range(9))) for (x,) in _good_and_bad()], then=lambda r: r)
def taken_from_an_iterator(x, numbers):
    first = next(numbers)
    try:
        assert (x > 0).all()
    except AssertionError:
        return next(numbers)
    return x + first + next(numbers)


@case(lambda: [(torch.tensor(v),) for v in ([1.0, 2.0, 3.0], [1.0, -2.0, 3.0], [4.0, 5.0, -6.0])])
def within_a_loop(x):
    total = torch.zeros(())
    for n, value in enumerate(x):
        if value < 0:
            raise ValueError(f"value {n} is {value.item()}")
        total = total + value
    return total


@case(
    lambda: [(torch.tensor(v), []) for v in ([1.0, 2.0, 3.0], [1.0, -2.0, 3.0], [4.0, 5.0, -6.0])]
)
def caught_within_a_loop(x, seen):
    total = torch.zeros(())
    for value in x:
        try:
            if value < 0:
                raise ValueError("negative")
        except ValueError:
            seen.append("skipped")
            continue
        total = total + value
    return total


@case(_with_list)
def within_a_with_block(x, seen):
    @contextlib.contextmanager
    def noting():
        seen.append("entered")
        try:
            yield 2
        except ValueError:
            seen.append("seen")
            raise
        finally:
            seen.append("left")

    with noting() as factor:
        if torch.isnan(x).any():
            raise ValueError("nan")
        y = x * factor
    return y


@case(_with_list)
def suppressed(x, seen):
    with contextlib.suppress(AssertionError):
        assert (x > 0).all()
        seen.append("fine")
    return x + 1


@case(_good_and_bad)
def without_gradients(x):
    x = x.clone().requires_grad_()
    with torch.no_grad():
        assert (x > 0).all()
        scale = x.sum()
    return x * scale, torch.is_grad_enabled()


@case(_good_and_bad)
def within_autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x[None] @ x[:, None]
        if torch.isnan(y).any():
            raise ValueError("nan")
    return y


@case(_with_list)
def within_a_generator(x, seen):
    def parts():
        for part in x:
            if part < 0:
                raise ValueError("negative")
            yield part * 2

    for part in parts():
        seen.append(part)
    return x


@case(_good_and_bad, then=lambda found: list(found))
def generator_that_is_returned(x):
    assert not torch.isnan(x).any()
    return (part * 2 for part in x)


@case(_with_list)
def within_nested_calls(x, seen):
    def inner(y):
        seen.append("inner")
        assert (y > 0).all(), "deep"
        return y * 2

    def outer(y):
        seen.append("outer")
        return inner(y + 0.5) + 1

    return outer(x)


class _Checked(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.register_buffer("count", torch.zeros(()))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if torch.isnan(x).any():
            raise ValueError("nan in the input")
        self.count += 1
        y = x * self.weight
        return y


_module = _Checked()


@case(_good_and_bad)
def in_a_module(x):
    return _module(x), _module.calls, _module.count.clone()


@case(_good_and_bad, drive=lambda program, x: _backward(program(x)))
def trained(x):
    y = _module.weight * x
    assert not torch.isnan(y).any(), "nan"
    return (y * y).sum()


def _backward(loss):
    _module.weight.grad = None
    loss.backward()
    return loss.detach(), _module.weight.grad.clone()


class _Hooked(nn.Linear):
    pass


def _refuse_nan(module, given):
    if torch.isnan(given[0]).any():
        raise ValueError("a hook found nan")


def _clipped(module, given, result):
    assert result.abs().max() < 100
    return result.clamp(max=1)


_hooked = _Hooked(2, 2)
nn.init.constant_(_hooked.weight, 0.5)
nn.init.constant_(_hooked.bias, 0.5)
_hooked.register_forward_pre_hook(_refuse_nan)
_hooked.register_forward_hook(_clipped)


@case(_good_and_bad)
def in_hooks_of_a_module(x):
    return _hooked(x)


class _Statistics(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x):
        y = self.norm(torch.stack([x, x + 1]))
        if torch.isnan(y).any():
            raise ValueError("nan after the norm")
        return y


_statistics = _Statistics()


@case(_good_and_bad)
def after_a_batch_norm(x):
    return _statistics(x), _statistics.norm.running_mean.clone()


@case(_good_and_bad)
def before_a_batch_norm(x):
    if torch.isnan(x).any():
        raise ValueError("nan before the norm")
    return _statistics.norm(torch.stack([x, x + 1])), _statistics.norm.running_mean.clone()


@case(_good_and_bad)
def by_torch_assert(x):
    torch._assert((x > 0).all(), "negative")
    return x + 1


@case(_good_and_bad)
def by_torch_assert_async(x):
    torch._assert_async((x > 0).all())
    return x + 1


@case(_good_and_bad)
def by_torch_check(x):
    torch._check_tensor_all(x > 0, lambda: f"not all of {x.tolist()} are positive")
    return x + 1


@case(_good_and_bad)
def by_torch_check_of_a_number(x):
    torch._check_value(x.sum().item() > 0, lambda: "negative in sum")
    return x + 1


@case(_good_and_bad)
def by_allclose(x):
    assert torch.allclose(x, x.abs(), rtol=1e-3)
    return x + 1


@case(_good_and_bad)
def by_equal(x):
    assert torch.equal(x, x.abs()), "differ"
    return x + 1


@case(_good_and_bad)
def by_equal_of_other_shapes(x):
    if torch.equal(x, x[:1]):
        raise ValueError("equal")
    assert not torch.equal(x, x + 1)
    return x + 1


@case(_good_and_bad)
def by_is_nonzero(x):
    if torch.is_nonzero((x < 0).sum()):
        raise ValueError("negative")
    return x + 1


@case(_good_and_bad)
def by_testing(x):
    torch.testing.assert_close(x, x.abs())
    return x + 1


@case(
    lambda: [
        (torch.tensor(v), torch.tensor(s))
        for v, s in ((0.5, 1.0), (2.0, 0.5), (1.0, -1.0), (1.5, 2.0), (NAN, 1.0))
    ]
)
def by_distributions(mean, scale):
    normal = torch.distributions.Normal(mean, scale)
    return normal.log_prob(mean + 1)


@case(
    lambda: [
        (torch.tensor(v), torch.tensor(s))
        for v, s in ((0.5, 1.0), (0.25, 0.0), (1.5, 1.0), (0.75, 2.0))
    ]
)
def by_support_of_distributions(probability, value):
    return torch.distributions.Bernoulli(probs=probability).log_prob(value)


@case(
    lambda: [(torch.tensor(v),) for v in ([0, 2, 1], [3, 0, 0], [0, 4, 1], [-1, 2, 2], [1, 1, 1])]
)
def places_in_range(ids):
    if ids.min() < 0 or ids.max() >= 4:
        raise IndexError(f"ids from {ids.min()} to {ids.max()}")
    return torch.arange(4.0)[ids] + nn.functional.embedding(ids, torch.eye(4))[:, 0]


@case(lambda: [(torch.tensor(v),) for v in (1.0, 2.0, 0.0, -3.0, NAN)])
def truth_of_a_number(x):
    assert x
    return x + 1


@case(lambda: [(torch.tensor(v),) for v in (0.0, -0.0, 2.0, NAN, 0.0)])
def falsehood_of_a_number(x):
    if x:
        raise ValueError("not zero")
    return x + 1


@case(lambda: [(torch.tensor([[v]]),) for v in (1 + 1j, 0j, 1j, complex(0, NAN))])
def truth_of_a_complex_number(x):
    assert x
    return x + 1


@case(lambda: [(torch.ones(n),) for n in (1, 2, 1, 0)])
def truth_of_many(x):
    assert x, "ambiguous or not"
    return x + 1


@case(lambda: [(torch.tensor(v, requires_grad=True),) for v in (1.0, 0.0, 2.0)])
def truth_of_what_needs_gradients(x):
    assert x * 2
    return x * 3


@case(_with_list)
def raised_with_a_new_class(x, seen):
    class BadData(ValueError):
        def __init__(self, data):
            super().__init__("bad data")
            seen.append(data.sum())

    if torch.isnan(x).any():
        raise BadData(x) from None
    return x


class _Counter:
    def __init__(self):
        self.failures = 0

    def check(self, x):
        if (x < 0).any():
            self.failures += 1
            raise ValueError(f"failure {self.failures}")
        return x


_counter = _Counter()


@case(_good_and_bad)
def counted_failures(x):
    try:
        return _counter.check(x), _counter.failures
    except ValueError as error:
        return str(error), _counter.failures


@case(_good_and_bad)
def not_an_error_of_the_program(x):
    assert (x > 0).all()
    picked = torch.arange(3)[x.long()[:1]]
    return picked + x


@case(lambda: [(torch.tensor(v), n) for v in ([1.0, 2.0], [-1.0, 2.0]) for n in (1, 2, 3)])
def with_a_number_that_changes(x, n):
    assert (x * n).sum() < 5 * n, f"{n}"
    if (x < 0).any():
        raise ValueError(n)
    return x + n


@case(lambda: [(torch.ones(n) * s,) for n in (2, 3, 4, 5) for s in (1, -1)])
def of_sizes_that_change(x):
    assert (x > 0).all(), f"{x.shape[0]} values"
    return x * x.shape[0]


@case(_with_list)
def after_a_break(x, seen):
    seen.append(id(seen) > 0)
    y = x * 2
    breakpoint_ = float(y.abs().nan_to_num().sum() * 0)
    try:
        if torch.isnan(y).any():
            raise ValueError("nan")
    except ValueError as error:
        seen.append(str(error))
        return None
    return y + breakpoint_


@case(_good_and_bad)
def before_a_break(x):
    assert (x > 0).all(), "negative"
    count = sum(1 for value in x.tolist() if value > 3)
    return x * count


@case(_with_list)
def raised_while_handling(x, seen):
    try:
        raise KeyError("outer")
    except KeyError:
        try:
            assert (x > 0).all(), "inner"
        except AssertionError as error:
            seen.append(repr(error.__context__))
    return x


@case(lambda: [(t(3), t(3)), (t(3), -t(3).abs()), (t(3), t(3).abs())])
def with_two_tensors(x, y):
    if (x.shape != y.shape) or (y < 0).all():
        raise ValueError("no")
    return x + y


@case(_with_list)
def numbers_compared(x, seen):
    if x.max().item() > 4.5:
        raise ValueError("too big")
    assert 0 < x.min().item() <= x.max().item(), "too small"
    assert float(x.sum()) != len(seen) + 7, "seven"
    seen.append(x)
    return x * 2


@case(
    lambda: [
        (torch.tensor(v), torch.ones(n))
        for v, n in (([0, 2], 3), ([1, 3], 4), ([1, 3], 3), ([-1, 0], 3))
    ]
)
def places_compared(ids, table):
    if ids.max().item() >= table.shape[0] or int(ids.min()) < 0:
        raise IndexError(f"{ids.tolist()} of {table.shape[0]}")
    return table[ids]


@case(
    lambda: [
        (torch.tensor(v, dtype=d),)
        for d in (torch.int64, torch.int32, torch.bool, torch.float16)
        for v in (1, 0)
    ]
)
def numbers_of_all_kinds_compared(x):
    if x.item() == 1.0:
        raise ValueError("one")
    if x.item() >= 1 << 60:
        raise ValueError("large")
    if -1 > x.item() or True is x.item():
        raise ValueError("small")
    return x + 1


@case(
    lambda: [
        (torch.tensor(v, dtype=torch.float64),)
        for v in (0.1, 0.1 + 1e-17, 0.30000000000000004, 1e300)
    ]
)
def floats_compared_exactly(x):
    if x.float().item() == 0.1:
        raise ValueError("never")
    if x.item() != 0.1:
        raise ValueError("another")
    return x + 1


@case(lambda: [(torch.tensor(v),) for v in ((1 << 53) + 1, 1 << 53, 5)])
def large_integers_compared(x):
    if x.item() == float(1 << 53):
        raise ValueError("equal")
    return x + 1


@case(_good_and_bad)
def asked_of_a_number(x):
    import math

    loss = x.log().sum()
    if not math.isfinite(loss.item()):
        raise FloatingPointError(f"loss is {loss.item()}")
    assert not math.isnan(float(loss)), "never"
    return loss * 2


@case(_with_list)
def compared_over_a_break(x, seen):
    def limit():
        seen.append(len(seen))
        return float(repr(4.5 + id(seen) * 0))

    if x.max().item() > limit():
        raise ValueError("too big")
    return x + 1


@case(_with_list)
def compared_with_what_is_changed(x, seen):
    if x.max().item() > x.add_(1).sum().item():
        raise ValueError("too big")
    seen.append(x.sum())
    return x + 1


@case(_good_and_bad)
def read_by_a_function_that_is_passed(x):
    found = list(map(torch.Tensor.item, x.unbind()))
    assert found == [1.0, 2.0] or found[0] > 2, f"{found}"
    return x


@case(_good_and_bad)
def compared_with_what_is_changed_since(x):
    if x[0].item() >= x.add_(1)[0].item():
        raise ValueError("not changed")
    return x


def _demand(error, condition, text=None):
    if not isinstance(condition, bool):
        raise TypeError("a bool is wanted")
    if not condition:
        raise error(text() if callable(text) else text)


def _demand_all(condition, text):
    _demand(ValueError, condition.all().item(), text)


@case(_good_and_bad)
def passed_on_as_bools(x):
    _demand(KeyError, bool((x < 6).all()), "too large")
    _demand_all(x > 0, lambda: f"not positive: {x.tolist()}")
    torch._check(bool((x < 5.5).all()), lambda: "too big")
    torch._check((x.sum() < 9).item())
    return x + 1


@case(_good_and_bad)
def passed_on_to_methods(x):
    import unittest

    test = unittest.TestCase()
    test.assertTrue(torch.allclose(x, x.abs()))
    test.assertFalse(bool(torch.isnan(x).any()), "nan")
    return x + 1


@case(_with_list)
def passed_on_to_what_only_notes(x, seen):
    def note(flag, value):
        seen.append((flag, value))

    note(bool((x > 0).all()), 1)
    return x + 1


@case(_good_and_bad)
def passed_on_as_a_comparison(x):
    torch._check_value(x.max().item() < 5.5, lambda: "too big")
    return x - 1


@case(
    lambda: [
        (torch.tensor(v),)
        for v in ([[2.0, 1.0], [1.0, 2.0]], [[1.0, 2.0], [2.0, 1.0]], [[3.0, 0.0], [0.0, 1.0]])
    ]
)
def by_constraints_of_matrices(x):
    if not torch.isclose(x, x.mT).all() or abs(x).sum() > 100:
        raise ValueError("not symmetric")
    normal = torch.distributions.MultivariateNormal(abs(x[0]), x)
    return normal.log_prob(x[1])
