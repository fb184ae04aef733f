"""Parts of torch that somebody replaces between calls: the next call sees the new ones."""

from __future__ import annotations

import contextlib

import torch
import torch.nn.functional as F
from torch import nn

from conformance.declare import case, scenario, t


@contextlib.contextmanager
def patched(owner, name, value):
    missing = object()
    own = vars(owner).get(name, missing)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, own)


def _around(owner, name, value, *, make=lambda: t(3)):
    """Sets of a tensor: as torch is, with the part replaced, and as it is again."""

    def factory():
        yield (make(),)
        with patched(owner, name, value):
            yield (make(),)
        yield (make(),)

    return factory


def _other(x, *args, **kwargs):
    return torch.cos(x)


@case(_around(torch.Tensor, "__add__", lambda x, y: torch.mul(x, 10)))
def operator_patched(x):
    return x + 1


@case(_around(torch.Tensor, "__radd__", lambda x, y: torch.mul(x, 10)))
def reflected_operator_patched(x):
    return 1 + x


@case(_around(torch.Tensor, "__rsub__", lambda x, y: torch.mul(x, 10)))
def reflected_difference_patched(x):
    return 1 - x


@case(_around(torch.Tensor, "__neg__", _other))
def unary_operator_patched(x):
    return -x


@case(_around(torch.Tensor, "__iadd__", lambda x, y: torch.mul(x, 10)))
def in_place_operator_patched(x):
    x += 1
    return x


@case(_around(torch.Tensor, "__getitem__", lambda x, key: torch.mul(x, 10)))
def index_patched(x):
    return x[0]


@case(_around(torch.Tensor, "__setitem__", lambda x, key, value: x.zero_()))
def index_assignment_patched(x):
    x[0] = 5
    return x


@case(_around(torch.Tensor, "__lt__", lambda x, y: torch.ones(3)))
def comparison_patched(x):
    return x < 1


@case(_around(torch.Tensor, "__matmul__", lambda x, y: torch.ones(3)))
def product_patched(x):
    return x @ x


@case(_around(torch.Tensor, "__len__", lambda x: 7))
def length_patched(x):
    return len(x), x * 2


@case(_around(torch.Tensor, "__iter__", lambda x: iter([1, 2])))
def iteration_patched(x):
    return list(x)


@case(_around(torch.Tensor, "__bool__", lambda x: False))
def truth_patched(x):
    return bool(x.sum() > -100)


@case(_around(torch.Tensor, "__contains__", lambda x, y: "no"))
def containment_patched(x):
    return 77.0 in x


@case(_around(torch.Tensor, "sin", _other))
def method_patched(x):
    return x.sin()


@case(_around(torch.Tensor, "relu", _other))
def method_by_value_patched(x):
    return torch.Tensor.relu(x)


@case(_around(torch.Tensor, "nbytes", property(lambda x: (9,))))
def property_patched(x):
    return x.nbytes, x * 2


@case(_around(torch.Tensor, "dim", lambda x: 9))
def query_patched(x):
    return x.dim(), x * 2


@case(_around(torch.Tensor, "grown", lambda x: x * 3))
def attribute_added(x):
    return x.grown() if hasattr(x, "grown") else x


@case(_around(torch, "sin", _other))
def function_patched(x):
    return torch.sin(x)


@case(_around(F, "relu", _other))
def functional_patched(x):
    return F.relu(x), torch.nn.functional.relu(x)


@scenario(_around(F, "relu", _other))
def functional_patched_below_module():
    return nn.ReLU()


@scenario(_around(F, "linear", lambda x, w, b=None: x * 2, make=lambda: t(2, 3)))
def linear_patched_below_module():
    torch.manual_seed(0)
    return nn.Linear(3, 2)


@scenario(_around(nn.Linear, "forward", lambda self, x: x * 2, make=lambda: t(2, 3)))
def forward_patched():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.Tanh())


@scenario(_around(nn.Module, "__call__", lambda self, x: x * 2, make=lambda: t(2, 3)))
def module_call_patched():
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    return lambda x: made(x)


@scenario(_around(nn.Module, "_call_impl", lambda self, x: x * 2, make=lambda: t(2, 3)))
def module_call_implementation_patched():
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    return lambda x: made(x)


@contextlib.contextmanager
def _code(function, other):
    before = function.__code__
    function.__code__ = other.__code__
    try:
        yield
    finally:
        function.__code__ = before


def _with_code(function, other, make=lambda: t(3)):
    def factory():
        yield (make(),)
        with _code(function, other):
            yield (make(),)
        yield (make(),)

    return factory


def _doubled(input, inplace=False):
    return input * 2


def _zeroed(self, input):
    return input * 0


@case(_with_code(F.relu, _doubled))
def code_of_functional_replaced(x):
    return F.relu(x)


@scenario(_with_code(nn.ReLU.forward, _zeroed))
def code_of_forward_replaced():
    return nn.Sequential(nn.ReLU(), nn.Tanh())


@contextlib.contextmanager
def _defaults(function, defaults):
    before = function.__defaults__
    function.__defaults__ = defaults
    try:
        yield
    finally:
        function.__defaults__ = before


def _other_defaults():
    yield (t(3),)
    with _defaults(F.leaky_relu, (0.5, False)):
        yield (t(3),)
    yield (t(3),)


@case(_other_defaults)
def defaults_of_functional_replaced(x):
    return F.leaky_relu(x)


@scenario(_around(nn.init, "_no_grad_uniform_", lambda tensor, a, b, generator=None: tensor))
def helper_of_torch_patched():
    def program(x):
        with torch.no_grad():
            return nn.init.uniform_(x, 1.0, 1.0)

    return program


@scenario(_around(torch._VF, "dropout", lambda x, p, train: x * 5))
def function_of_c_patched():
    return lambda x: F.dropout(x, 0.0) + 1


@case(_around(torch.linalg, "norm", _other))
def submodule_patched(x):
    return torch.linalg.norm(x)


@case(_around(torch.autograd.Function, "apply", classmethod(lambda cls, x: x * 10)))
def apply_patched(x):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    return Double.apply(x)


@case(_around(torch, "is_anomaly_enabled", lambda: "maybe"))
def mode_reader_patched(x):
    return torch.is_anomaly_enabled(), x * 2


@case(
    _around(nn.Parameter, "__add__", lambda x, y: torch.mul(x, 10), make=lambda: nn.Parameter(t(3)))
)
def operator_of_parameters_patched(x):
    return (x + 1).detach()


@case(_around(torch.Tensor, "__torch_function__", torch._C._disabled_torch_function_impl))
def torch_function_switched_off(x):
    return x.as_subclass(torch.Tensor) + 1
