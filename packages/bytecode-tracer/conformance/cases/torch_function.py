"""Subclasses of tensors, other objects and modes that intercept `__torch_function__`."""

from __future__ import annotations

import torch
from torch import nn

from conformance.declare import case, t


class Logged(torch.Tensor):
    calls = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Logged.calls.append(getattr(func, "__name__", "?"))
        return super().__torch_function__(func, types, args, kwargs or {})


class Tagged(torch.Tensor):
    @property
    def doubled(self):
        return self * 2


class Unit:
    """Not a tensor, but torch functions take it."""

    def __init__(self, value):
        self.value = value

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        plain = [a.value if isinstance(a, Unit) else a for a in args]
        return Unit(func(*plain, **(kwargs or {})))


@case(lambda: [(t(3),), (t(3).as_subclass(Logged),), (t(2).as_subclass(Logged),), (t(3),)])
def subclass_with_torch_function(x):
    return x * 2 + 1, type(x).__name__


@case(lambda: [(t(3).as_subclass(Tagged),), (t(2).as_subclass(Tagged),), (t(3),)])
def subclass_with_property(x):
    return x.doubled if isinstance(x, Tagged) else x, x + 1


@case(lambda: [(t(3),), (t(2),)])
def subclass_made_inside(x):
    y = x.as_subclass(Tagged)
    return y.doubled, type(y + 1).__name__, type(y) is Tagged


@case(lambda: [(Unit(t(3)),), (Unit(t(2)),), (t(3),)])
def torch_function_of_other_object(x):
    return torch.add(x, 1)


class Halving(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result / 2 if func is torch.sin else result


@case(lambda: [(t(3),), (t(2),)])
def torch_function_mode_inside(x):
    with Halving():
        y = torch.sin(x)
    return y, torch.sin(x)


def _mode():
    yield (t(3),)
    with Halving():
        yield (t(3),)
    yield (t(3),)


@case(_mode)
def torch_function_mode_outside(x):
    return torch.sin(x)


class Units(torch.Tensor):
    """A tensor with a unit, which its own `__torch_function__` carries along."""

    @staticmethod
    def of(data, unit):
        made = data.as_subclass(Units)
        made.unit = unit
        return made

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        units = [a.unit for a in args if isinstance(a, Units) and hasattr(a, "unit")]
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and units:
            result = Units.of(result.as_subclass(torch.Tensor), "*".join(units))
        return result

    def described(self):
        return f"{self.unit}: {tuple(self.shape)}"


def _units():
    return [(Units.of(t(3), "m"),), (Units.of(t(2), "m"),), (Units.of(t(3), "s"),)]


@case(lambda: [(t(3).as_subclass(Logged),), (t(2).as_subclass(Logged),), (t(3),)])
def operations_of_logged_tensors(x):
    Logged.calls.clear()
    y = torch.cat([x, x + 1]) ** 2
    z = nn.functional.relu(2 - y) + y[0] + nn.functional.mse_loss(x, x)
    return z, x.shape, x.dtype, y.max(0), list(Logged.calls), z.dim(), x.view(-1).T.device


@case(_units)
def tensors_with_units(x):
    y = x * x
    return y.unit, y.described(), y, (x + 1).unit, torch.sin(x).unit


@case(lambda: [(t(3).as_subclass(Logged), t(3)), (t(3), t(3).as_subclass(Logged)), (t(3), t(3))])
def plain_and_logged_mixed(x, y):
    return x + y, torch.add(y, x), type(x * y).__name__, x.add_(1) is x, x


@case(lambda: [(t(3, grad=True),), (t(2, grad=True),)], then=lambda r: r.sum().backward())
def subclass_and_gradients(x):
    y = x.as_subclass(Tagged)
    return (y * 2).sin()


def _shared_tagged():
    x = t(3)
    return [(x.as_subclass(Tagged), x), (t(3).as_subclass(Tagged), t(3))]


@case(_shared_tagged)
def subclass_changed_in_place(x, base):
    x.mul_(3)
    x[0] = 7
    return base + 1, x.doubled, isinstance(x, Tagged), x.clone()


@case(
    lambda: [
        (t(3).as_subclass(Tagged),),
        (t(3).as_subclass(Logged),),
        (t(3),),
        (nn.Parameter(t(3)),),
    ]
)
def classes_of_tensors(x):
    return type(x).__name__, isinstance(x, Tagged), isinstance(x, nn.Parameter), x * 2, x.numel()


@case(lambda: [(t(3).as_subclass(Tagged),), (t(1).as_subclass(Tagged),)])
def subclass_with_breaks(x):
    y = x + 1
    print("sum", y.sum().item())
    if y.sum() > 1:
        y = y * 2
    return y, len(y), y.tolist(), [row for row in y]


class Patched(torch.Tensor):
    pass


def _handlers():
    yield (t(3).as_subclass(Patched),)
    Patched.__torch_function__ = classmethod(
        lambda cls, func, types, args=(), kwargs=None: "patched"
    )
    yield (t(3).as_subclass(Patched),)
    del Patched.__torch_function__
    yield (t(3).as_subclass(Patched),)


@case(_handlers)
def torch_function_patched_later(x):
    return x + 1


class Wrapped(torch.Tensor):
    """A wrapper subclass, which sees operations at the dispatcher."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = [a.inner if isinstance(a, Wrapped) else a for a in args]
        return Wrapped(func(*plain, **(kwargs or {})))


@case(lambda: [(t(3),), (t(2),), (t(3),)], drive=lambda program, x: program(Wrapped(x)))
def wrapper_subclass(x):
    y = torch.sin(x * 2)
    return y.inner if isinstance(y, Wrapped) else y, type(y).__name__


@case(lambda: [(t(3),), (t(2),)])
def wrapper_subclass_made_inside(x):
    y = Wrapped(x) + 1
    return y.inner, type(y).__name__
