"""Tensor subclasses that hold tensors, with `__torch_dispatch__` and `__tensor_flatten__`."""

from __future__ import annotations

import dataclasses
import itertools
import random
import time

import torch
from torch.utils import _pytree as pytree

from conformance.declare import case, scenario, t

aten = torch.ops.aten


class Pair(torch.Tensor):
    """Two tensors on which everything happens twice."""

    @staticmethod
    def __new__(cls, a, b):
        return torch.Tensor._make_wrapper_subclass(
            cls, a.shape, dtype=a.dtype, device=a.device, strides=a.stride()
        )

    def __init__(self, a, b):
        self.a, self.b = a, b

    def __tensor_flatten__(self):
        return ["a", "b"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["a"], inner["b"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        first = func(*_part(args, "a"), **_part(kwargs, "a"))
        second = func(*_part(args, "b"), **_part(kwargs, "b"))
        if func._schema.name.endswith("_"):
            return args[0]
        leaves, spec = pytree.tree_flatten(first)
        others = pytree.tree_leaves(second)
        made = [
            cls(a, b) if isinstance(a, torch.Tensor) else a
            for a, b in zip(leaves, others, strict=True)
        ]
        return pytree.tree_unflatten(made, spec)

    def spread(self):
        return self.b - self.a

    @property
    def middle(self):
        return (self.a + self.b) / 2


def _part(tree, name):
    return pytree.tree_map_only(Pair, lambda each: getattr(each, name), tree)


class Scaled(torch.Tensor):
    """Integers and a scale, as quantized weights are stored; it computes as what they stand for."""

    @staticmethod
    def __new__(cls, numbers, scale, dtype=torch.float32):
        return torch.Tensor._make_wrapper_subclass(
            cls, numbers.shape, dtype=dtype, device=numbers.device, strides=numbers.stride()
        )

    def __init__(self, numbers, scale, dtype=torch.float32):
        self.numbers, self.scale, self.kind = numbers, scale, dtype

    @classmethod
    def of(cls, value):
        scale = value.abs().amax(1, keepdim=True).clamp(min=1e-6) / 127
        return cls((value / scale).round().to(torch.int8), scale, value.dtype)

    def dequantize(self):
        return self.numbers.to(self.kind) * self.scale

    def __tensor_flatten__(self):
        return ["numbers", "scale"], (self.kind,)

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["numbers"], inner["scale"], *context)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        handler = _HANDLERS.get(func)
        if handler is not None:
            return handler(*args, **(kwargs or {}))
        plain = pytree.tree_map_only(Scaled, Scaled.dequantize, (args, kwargs or {}))
        return func(*plain[0], **plain[1])


def _same(name):
    def handler(value, *args):
        operate = getattr(value.numbers, name)
        return Scaled(operate(*args), getattr(value.scale, name)(*args), value.kind)

    return handler


_HANDLERS = {
    aten.detach.default: _same("detach"),
    aten.clone.default: _same("clone"),
    aten.alias.default: lambda value: Scaled(value.numbers, value.scale, value.kind),
    aten.t.default: _same("t"),
}


def pair(*shape, grad=False, start=-1.0):
    made = Pair(t(*shape, start=start), t(*shape, start=start + 3))
    return made.requires_grad_() if grad else made


def scaled(*shape, grad=False, start=-1.0):
    made = Scaled.of(t(*shape, start=start))
    return made.requires_grad_() if grad else made


def _pairs():
    return [(pair(2, 3),), (pair(4, 3),), (pair(2, 3, start=2),), (t(2, 3),)]


def _two():
    return [(pair(2, 3), t(3, 2)), (pair(2, 3), pair(3, 2)), (t(2, 3), pair(3, 2))]


def _grads():
    return [(pair(2, 3, grad=True),), (pair(2, 3),), (pair(3, 3, grad=True, start=1),)]


def _backward(result):
    leaves = [each for each in pytree.tree_leaves(result) if isinstance(each, torch.Tensor)]
    for each in leaves:
        if each.requires_grad:
            each.sum().backward(retain_graph=True)


@case(_pairs)
def arithmetic(x):
    return (x * 2 + 1).relu().sum(0)


@case(_two)
def matrix_product(x, y):
    return torch.nn.functional.linear(x, y.t()).softmax(-1)


@case(_pairs)
def several_results(x):
    values, places = x.max(1)
    return values, places, x.unbind(0), torch.split(x, 2, dim=1)


@case(lambda: [(pair(2, 3),), (pair(2, 3, start=4),), (pair(1, 3),)])
def what_it_holds(x):
    return x.a * 2, x.spread(), x.middle, x.b, (x + 1).a, x.a is x.a


@case(_pairs)
def made_inside(x):
    if isinstance(x, Pair):
        x = x.a
    made = Pair(x * 2, x.sin())
    return made + 1, made.spread(), type(made) is Pair, isinstance(made, torch.Tensor)


@case(_pairs)
def returned_as_it_is(x):
    y = x * 2
    return x, y, y, x


@case(lambda: [(pair(2, 3),), (pair(3, 2),), (pair(2, 2),)])
def changed_in_place(x):
    x.mul_(2)
    y = x + 1
    x.add_(y)
    return y


@case(lambda: [(pair(2, 3),), (pair(3, 2),)])
def what_it_holds_changed(x):
    x.a.mul_(2)
    x.b[0] = 7
    return x.sum(), x.a.sum()


@case(lambda: [(pair(2, 3),), (pair(3, 2),), (pair(2, 3, grad=True),)], then=_backward)
def views(x):
    return x.t() * 2, x.view(-1).cos(), x[0] + x[:, :1].sum()


@case(lambda: [(pair(2, 3),), (pair(3, 2),)])
def views_returned(x):
    return x.t(), x[0]


@case(_grads, then=_backward)
def gradients(x):
    return (x * x).sin().sum(1)


@case(lambda: [(pair(2, 3, grad=True), t(4, 3)), (pair(2, 3), t(2, 3))], then=_backward)
def gradients_beside_plain(x, y):
    return torch.nn.functional.linear(y, x).tanh(), y * 2


@case(_grads, then=_backward)
def without_gradients(x):
    with torch.no_grad():
        y = x * 3
    return y + x.detach(), x * y


@case(
    lambda: [
        (t(2, 3), scaled(4, 3), t(4)),
        (t(1, 3), scaled(4, 3, start=2), t(4)),
        (t(2, 3, grad=True), scaled(4, 3, grad=True), t(4, grad=True)),
        (t(2, 3, grad=True), scaled(4, 3), None),
    ],
    then=_backward,
)
def quantized_linear(x, weight, bias):
    return torch.nn.functional.linear(x, weight, bias).relu()


@case(lambda: [(t(2, 3),), (t(3, 3),), (t(2, 3, start=5),)])
def quantized_inside(x):
    weight = Scaled.of(x * 2)
    return torch.nn.functional.linear(x, weight), weight.scale, weight


@case(lambda: [(scaled(2, 3),), (scaled(2, 3, start=3),)])
def quantized_copy(x):
    return x.clone(), x.detach(), x.dequantize() + 1, x.dtype


class Quantized(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(scaled(4, 3), requires_grad=False)
        self.bias = torch.nn.Parameter(t(4))

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight, self.bias)


@scenario(lambda: [(t(2, 3),), (t(2, 3, grad=True),), (t(4, 3),)], then=_backward)
def quantized_module():
    return Quantized()


class PairModule(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(pair(3, 3))

    def forward(self, x):
        return (x @ self.weight).relu()


@scenario(lambda: [(t(2, 3),), (t(2, 3),), (t(4, 3),)], then=_backward)
def module_with_pairs():
    return PairModule()


@case(lambda: [(Pair(pair(2, 2), pair(2, 2, start=4)),), (pair(2, 2),), (t(2, 2),)])
def nested(x):
    return x * 2 + 1, x.sum()


@case(
    lambda: [(Pair(pair(2, 2), pair(2, 2, start=4)).requires_grad_(),), (pair(2, 2, grad=True),)],
    then=_backward,
)
def nested_gradients(x):
    return (x * x).sum()


# What the class's code reads, and what it changes.

_FACTOR = 2


class Global(Pair):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is aten.mul.Tensor:
            return cls(args[0].a * _FACTOR, args[0].b * _OPTIONS["factor"])
        return super().__torch_dispatch__(func, types, args, kwargs)


_OPTIONS = {"factor": 3}


def _changing_globals():
    global _FACTOR
    for factor in (2, 5, 5):
        _FACTOR = factor
        yield (Global(t(2, 3), t(2, 3)),)
        _OPTIONS["factor"] = factor + 1
        yield (Global(t(2, 3), t(2, 3)),)


@case(_changing_globals)
def code_that_reads_globals(x):
    return x * 1


def _changing_methods():
    for number in range(3):
        Global.shift = classmethod(lambda cls, x, n=number: x + n)
        yield (Shifted(t(2), t(2)),)


class Shifted(Global):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is aten.neg.default:
            return cls.shift(args[0].a)
        return super().__torch_dispatch__(func, types, args, kwargs)


@case(_changing_methods)
def code_that_is_replaced(x):
    return -x


_CALLS = []
_COUNT = 0


class Counting(Pair):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        _CALLS.append(func._schema.name)
        return super().__torch_dispatch__(func, types, args, kwargs)


class CountingGlobal(Pair):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        global _COUNT
        _COUNT += 1
        return super().__torch_dispatch__(func, types, args, kwargs)


class CountingClass(Pair):
    seen = 0

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        cls.seen += 1
        return super().__torch_dispatch__(func, types, args, kwargs)


class Random(Pair):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        made = super().__torch_dispatch__(func, types, args, kwargs)
        return cls(made.a * random.random(), made.b * (1 + next(_NUMBERS)))


_NUMBERS = itertools.count()


class Timed(Pair):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        made = super().__torch_dispatch__(func, types, args, kwargs)
        return made if time.monotonic() > _START else made * 0


_START = 0


class Printing(Pair):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        print(func._schema.name)
        return super().__torch_dispatch__(func, types, args, kwargs)


@case(lambda: [(kind(t(2), t(2)),) for kind in (Counting, CountingGlobal, CountingClass)] * 2)
def code_with_effects(x):
    y = x * 2 + 1
    return y, len(_CALLS), _COUNT, CountingClass.seen


def _seeded():
    random.seed(0)
    for _ in range(3):
        yield (Random(t(2), t(2)),)


@case(_seeded)
def code_that_draws_numbers(x):
    return x.sin()


@case(lambda: [(Timed(t(2), t(2)),)] * 2)
def code_that_reads_the_time(x):
    return x.sin()


@case(lambda: [(Printing(t(2), t(2)),)] * 2)
def code_that_prints(x):
    return x * 2 + 1


def _counted(result):
    _backward(result[0])
    return len(_CALLS)


@case(lambda: [(Counting(t(2), t(2)).requires_grad_(),)] * 2, then=_counted)
def effects_in_the_backward(x):
    return x.sin(), len(_CALLS)


# Contexts.


@dataclasses.dataclass
class Spec:
    factor: float
    names: list[str]


class Described(Pair):
    def __init__(self, a, b, spec):
        super().__init__(a, b)
        self.spec = spec

    @staticmethod
    def __new__(cls, a, b, spec):
        return Pair.__new__(cls, a, b)

    def __tensor_flatten__(self):
        return ["a", "b"], {"spec": self.spec}

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["a"], inner["b"], context["spec"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        x = args[0]
        factor = x.spec.factor
        return cls(func(x.a, *args[1:]) * factor, func(x.b, *args[1:]), x.spec)


def _specs():
    spec = Spec(2.0, ["a"])
    yield (Described(t(2), t(2), spec),)
    yield (Described(t(2), t(2), spec),)
    spec.factor = 3.0
    yield (Described(t(2), t(2), spec),)
    yield (Described(t(2), t(2), Spec(3.0, ["a"])),)
    spec.names.append("b")
    yield (Described(t(2), t(2), spec),)


@case(_specs, then=lambda r: (r, r[0].spec is r[1]))
def contexts(x):
    return x.sin(), x.spec, x.spec.factor


class Hidden(Pair):
    """It keeps something of which `__tensor_flatten__` does not tell."""

    factor = 1

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return cls(func(args[0].a, *args[1:]) * args[0].factor, func(args[0].b, *args[1:]))


def _hidden():
    made = Hidden(t(2), t(2))
    yield (made,)
    other = Hidden(t(2), t(2))
    other.factor = 4
    yield (other,)
    made.factor = 2
    yield (made,)


@case(_hidden)
def attributes_that_are_not_told(x):
    return x.sin()


# Identity and sharing.


def _shared():
    x = pair(2, 3)
    yield x, x, t(2, 3)
    yield x, pair(2, 3), t(2, 3)
    yield x, pair(2, 3), x.a
    yield x, Pair(x.b, x.a), t(2, 3)


@case(_shared)
def passed_twice(x, y, z):
    x.add_(1)
    return x is y, x.a is z, y * 2, z + 1


@case(lambda: [(pair(2, 3), 2), (pair(2, 3), 3), (pair(2, 3), "x")])
def errors(x, y):
    try:
        return x.view(y, -1)
    except (RuntimeError, TypeError) as error:
        return type(error).__name__


@case(lambda: [(pair(2, 3),), (pair(1, 1),)])
def broken_in_the_middle(x):
    y = x * 2
    print("here")
    if float(y.a.sum()) > 0:
        return y + 1
    return y - 1


@case(lambda: [([pair(2), {"k": pair(3)}],), ([pair(2), {"k": pair(2)}],)])
def in_containers(tree):
    return [tree[0] * 2, (tree[1]["k"].sum(), {"x": tree[0]})]


@case(lambda: [(pair(2, 3, grad=True),), (pair(2, 2, grad=True),)])
def differentiated_inside(x):
    (found,) = torch.autograd.grad((x * x).sum(), [x])
    return found * 2


@case(lambda: [(pair(2, 3, grad=True),), (pair(2, 2, grad=True),)])
def backward_inside(x):
    loss = (x * x).sum()
    loss.backward()
    return x.grad


class Unreadable(Pair):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is aten.sin.default:
            return NotImplemented
        return super().__torch_dispatch__(func, types, args, kwargs)


@case(lambda: [(Unreadable(t(2), t(2)),)] * 2)
def refused_operation(x):
    try:
        return x.sin()
    except TypeError:
        return x + 1
