"""Checks of data inside loops, blocks, generators, calls, modules and their hooks."""

from __future__ import annotations

import contextlib

import torch
from torch import nn

from conformance.declare import case

NAN = float("nan")


def _good_and_bad():
    """Tensors that hold what most cases assert, and such that do not, and back."""
    return [
        (torch.tensor(v),) for v in ([1.0, 2.0], [3.0, 4.0], [-1.0, 2.0], [5.0, 6.0], [NAN, 1.0])
    ]


def _with_list():
    return [(x, []) for (x,) in _good_and_bad()]


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
