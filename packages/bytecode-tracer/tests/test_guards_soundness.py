"""What changes between calls of a compiled module is seen, however settled the calls were."""

from __future__ import annotations

import copy
import types

import pytest
import torch
from torch import nn
from tracer_oracle import eager_backend

from plait_bytecode_tracer import (
    CompiledFunction,
    compile_module,
    compiled_function_of,
    wait_for_native_guards,
)

LIMIT = 3
"""A global that the module reads."""


class Config:
    def __init__(self):
        self.factor = 2.0
        self.names = ["one", "two"]
        self.table = {"bias": 1}


class Net(nn.Module):
    kind = "plain"

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
        self.norm = nn.BatchNorm1d(4)
        self.config = Config()
        self.step = 0

    def scale(self, x):
        return x * self.config.factor

    def forward(self, x, shift=0.5, *, power=1):
        x = self.norm(self.body(x))
        if "extra" in self.config.table:
            x = x + 1
        x = self.scale(x) + shift + len(self.config.names) + self.config.table["bias"]
        return (x**power).clamp(max=LIMIT) + (1 if self.kind == "plain" else 0)


def _set(path, value):
    def change(net):
        *owners, name = path.split(".")
        for owner in owners:
            net = getattr(net, owner)
        setattr(net, name, value(net) if callable(value) else value)

    return change


def _body(net):
    return net.body[0]


def _hooked(net):
    net.body[1].register_forward_hook(lambda module, args, out: out + 1)


def _hooked_outside(net):
    net.register_forward_pre_hook(lambda module, args: (args[0] * 2,))


def _own_forward(net):
    net.forward = types.MethodType(lambda self, x, **rest: x * 3, net)


def _inner_forward(net):
    net.body[1].forward = lambda x: x - 1


def _inserted(net):
    net.body.append(nn.Linear(4, 4))


def _data(net):
    _body(net).weight.data = torch.ones(4, 3)


def _halved(net):
    _body(net).weight.data = _body(net).weight.data[:, :1].expand(4, 3)


def _in_place(net):
    with torch.no_grad():
        _body(net).weight.mul_(2)


def _tied(net):
    net.body.append(net.body[0].__class__(4, 4))
    net.body[2].bias = net.body[0].bias


CHANGES = {
    "attribute": _set("config.factor", 3.0),
    "attribute's type": _set("config.factor", 2),
    "list in attribute": lambda net: net.config.names.append("three"),
    "dict in attribute": lambda net: net.config.table.update(bias=4),
    "key in attribute": lambda net: net.config.table.update(extra=1),
    "other object": _set("config", lambda net: type("Other", (Config,), {})()),
    "class attribute": lambda net: setattr(type(net), "kind", "other"),
    "own attribute": _set("kind", "own"),
    "method": lambda net: setattr(type(net), "scale", lambda self, x: x),
    "own method": _set("scale", lambda net: lambda x: x),
    "forward": lambda net: setattr(type(net), "forward", lambda self, x, **rest: x),
    "own forward": _own_forward,
    "inner forward": _inner_forward,
    "training": lambda net: net.train(),
    "training of one": lambda net: net.norm.train(),
    "momentum of a buffer": lambda net: net.norm.running_mean.add_(1),
    "hook": _hooked,
    "hook outside": _hooked_outside,
    "layer replaced": lambda net: net.body.__setitem__(0, nn.Linear(3, 4)),
    "layer added": _inserted,
    "layer removed": lambda net: net.body.__delitem__(1),
    "tied parameter": _tied,
    "parameter replaced": lambda net: setattr(_body(net), "weight", nn.Parameter(torch.ones(4, 3))),
    "parameter in place": _in_place,
    "parameter's data": _data,
    "parameter's strides": _halved,
    "parameter removed": lambda net: setattr(_body(net), "bias", None),
    "dtype": lambda net: net.double(),
    "frozen": lambda net: net.requires_grad_(False),
    "instance dict": lambda net: net.__dict__.update(step=1, kind="own"),
}


WAYS = pytest.mark.parametrize(
    ("calls", "native"), [(1, False), (1, True), (6, True)], ids=["python", "soon", "settled"]
)


@pytest.fixture
def native():
    return True


@pytest.fixture
def net_and_compiled(native):
    wait_for_native_guards()
    cls = type("Fresh", (Net,), {})  # changes of the class stay with this test
    torch.manual_seed(0)
    net = cls().eval()
    return net, compile_module(
        net, lambda f: CompiledFunction(f, eager_backend, native_guards=native)
    )


def _same(made, net, x, **arguments):
    expected_net = copy.deepcopy(net)
    actual, expected = made(x, **arguments), expected_net(x, **arguments)
    assert actual.dtype is expected.dtype
    assert actual.requires_grad is expected.requires_grad
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", CHANGES)
@WAYS
@pytest.mark.sampled(2)
def test_change_of_a_module_is_seen(name, calls, net_and_compiled):
    net, made = net_and_compiled
    x = torch.randn(5, 3)
    for _ in range(calls):
        _same(made, net, x)
    CHANGES[name](net)
    x = x.to(next(net.parameters()).dtype)
    for _ in range(2):
        _same(made, net, x)


@WAYS
def test_change_of_arguments_and_surroundings_is_seen(calls, net_and_compiled, monkeypatch):
    net, made = net_and_compiled
    x = torch.randn(5, 3)
    for _ in range(calls):
        _same(made, net, x)
    for arguments in ({"shift": 0}, {"shift": -0.0}, {"power": 2}, {"shift": 1, "power": 3}):
        for _ in range(calls):
            _same(made, net, x, **arguments)
    for other in (torch.randn(2, 3), torch.randn(3, 5).t(), x.clone().requires_grad_()):
        _same(made, net, other)
    with torch.no_grad():
        _same(made, net, x)
    monkeypatch.setitem(globals(), "LIMIT", 0.25)
    _same(made, net, x)
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, out: out + 1)
    try:
        _same(made, net, x)
    finally:
        handle.remove()
    _same(made, net, x)


def test_unchanged_calls_make_one_specialisation(net_and_compiled):
    net, made = net_and_compiled
    for n in range(20):
        net.step = n  # of which the forward knows nothing
        globals()["UNRELATED"] = n
        _same(made, net, torch.randn(5, 3))
    function = compiled_function_of(made)
    assert function is not None
    assert len(function.entries) == 1


BIG = int("1000000")
SAME = BIG


def test_whether_equal_numbers_are_one_object_is_seen():
    global SAME

    def f(x):
        return x * (2 if BIG is SAME else 3)

    fast = CompiledFunction(f, eager_backend)
    x = torch.ones(2)
    assert torch.equal(fast(x), x * 2)
    SAME = int("1000000")
    assert torch.equal(fast(x), x * 3)
    SAME = BIG
    assert torch.equal(fast(x), x * 2)
