"""The short way through native guards, and the quick calls of compiled objects."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from test_guards_native import _check, _tree
from tracer_oracle import compiled

from plait_bytecode_tracer import compile as compile_by
from plait_bytecode_tracer import compile_module, compiled_function_of
from plait_bytecode_tracer.guards import Kind
from plait_bytecode_tracer.guards.native import NATIVE
from plait_bytecode_tracer.values.sources import argument

pytestmark = pytest.mark.skipif(NATIVE.wait() is None, reason=f"no native: {NATIVE.failure}")
X = torch.ones(2, 3)


class Thing:
    pass


GROWS = {
    "item": lambda hooks: hooks.__setitem__("b", 2),
    "setdefault": lambda hooks: hooks.setdefault("b", 2),
    "update": lambda hooks: hooks.update(b=2),
    "or": lambda hooks: hooks.__ior__({"b": 2}),
    "dict": lambda hooks: dict.__setitem__(hooks, "b", 2),
    "del": lambda hooks: hooks.__delitem__("a"),
    "pop": lambda hooks: hooks.pop("a"),
    "popitem": lambda hooks: hooks.popitem(),
    "clear": lambda hooks: hooks.clear(),
    "dict clear": lambda hooks: dict.clear(hooks),
}


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("kind", [dict, OrderedDict], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", GROWS)
def test_each_way_to_change_a_length_is_noticed(name, kind, count):
    thing = Thing()
    thing.hooks = kind(a=1) if count else kind()
    if not count and name in ("del", "pop", "popitem", "clear", "dict clear"):
        return  # there is nothing to take away
    source = argument(0, "thing")
    hooks = source.instance_dict().element("hooks", "hooks")
    check = _check(_tree((source, Kind.TYPE, Thing), (hooks, Kind.LENGTH, count)))
    for _ in range(8):
        assert check.check(thing) == ()
    GROWS[name](thing.hooks)
    assert [check.check(thing) for _ in range(2)] == [1, 1]


def test_another_instance_dict_and_another_class_are_noticed():
    class Other(Thing):
        pass

    thing = Thing()
    thing.size = 1
    source = argument(0, "thing")
    size = source.instance_dict().element("size", "size")
    check = _check(_tree((source, Kind.TYPE, Thing), (size, Kind.EQUAL, 1)))
    for change, back in (
        (lambda: setattr(thing, "__class__", Other), lambda: setattr(thing, "__class__", Thing)),
        (lambda: setattr(thing, "__dict__", {}), lambda: setattr(thing, "__dict__", {"size": 1})),
        (lambda: setattr(thing, "size", 2), lambda: setattr(thing, "size", 1)),
        (lambda: vars(thing).pop("size"), lambda: vars(thing).update(size=1)),
    ):
        for _ in range(8):
            assert check.check(thing) == ()
        change()
        assert isinstance(check.check(thing), int)
        back()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x, scale=1):
        return self.linear(x) * scale


def test_another_call_of_a_compiled_class_is_python_s():
    net = compile_module(Net(), compiled)
    cls = type(net)
    expected = net(X)
    before = cls.__call__
    try:
        cls.__call__ = lambda self, x: "mine"
        assert net(X) == "mine"
    finally:
        cls.__call__ = before
    assert torch.equal(net(X), expected)

    class Derived(cls):
        def __call__(self, x):
            return super().__call__(x) + 1

    derived = Derived.__new__(Derived)
    object.__setattr__(derived, "__dict__", net.__dict__)
    for name in ("_plait_original", "_plait_compile", "_plait_compiled"):
        object.__setattr__(derived, name, getattr(net, name))
    for _ in range(3):
        assert torch.equal(derived(X), expected + 1)


def test_calls_by_every_kind_of_argument():
    net = Net()
    fast = compile_module(net, compiled)
    function = compiled(lambda x, *more, scale=2, **rest: (x * scale, more, rest))
    for _ in range(3):
        for args, kwargs in (((X,), {}), ((X, 2), {}), ((X,), {"scale": 2}), ((), {"x": X})):
            assert torch.equal(fast(*args, **kwargs), net(*args, **kwargs))
        for wrong in (((), {}), ((X, 1, 2), {}), ((X,), {"x": X}), ((X,), {"other": 1})):
            with pytest.raises(TypeError):
                fast(*wrong[0], **wrong[1])
        assert torch.equal(function(X, 1, a=3)[0], X * 2)
        assert function(X, 1, a=3)[1:] == ((1,), {"a": 3})
        with pytest.raises(TypeError):
            function()


def test_a_bare_object_of_a_compiled_class_says_what_python_says():
    cls = type(compile_module(Net(), compiled))
    with pytest.raises(AttributeError):
        cls.__new__(cls)(X)


def test_recursive_calls_keep_their_inputs():
    """The graph calls the function again, while its own inputs wait."""
    depth = []

    def backend(graph, inputs):
        def run(*values):
            if len(depth) < 3:
                depth.append(None)
                made(values[0] + 1)
            return graph(*values)

        return run

    made = compile_by(lambda x: x * 2, backend)
    for _ in range(6):
        depth.clear()
        assert torch.equal(made(X), X * 2)
    assert len(compiled_function_of(made).entries) == 1
