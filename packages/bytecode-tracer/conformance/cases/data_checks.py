"""What programs assert of data, and raise: a check in the graph, which holds for some calls."""

from __future__ import annotations

import logging
import random

import torch

from conformance.declare import case

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


@case(_with_list)
def raised_with_a_new_class(x, seen):
    class BadData(ValueError):
        def __init__(self, data):
            super().__init__("bad data")
            seen.append(data.sum())

    if torch.isnan(x).any():
        raise BadData(x) from None
    return x


@case(_good_and_bad)
def not_an_error_of_the_program(x):
    assert (x > 0).all()
    picked = torch.arange(3)[x.long()[:1]]
    return picked + x


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
