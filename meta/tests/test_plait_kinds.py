"""What can be compiled, and what is refused with a word on what to do."""

import functools

import pytest
import torch
from torch import nn

import plait


def twice(x):
    return x * 2


def graphs(fast):
    return len(plait.report(fast).graphs)


class Hostile:
    def __repr__(self):
        raise RuntimeError("no repr")

    def __getattr__(self, name):
        raise RuntimeError("no attributes")


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (torch.ones(3), "takes a function, a method or an nn.Module, not tensor"),
        (3, "not 3"),
        ("twice", "not 'twice'"),
        ((twice,), "not (<function twice"),
        (torch, "not <module 'torch'"),
        (Hostile(), "not a Hostile (its repr raises RuntimeError)"),
        (nn.Linear, "compile(Linear(...))"),
        (int, "not the class int"),
        (property(twice), "Put @property above the decorator"),
        (functools.cached_property(twice), "Put @property above the decorator"),
        (torch.jit.script(nn.ReLU()), "Compile the module that it was made from"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_compiled_is_refused(model, expected):
    with pytest.raises(plait.OptionError) as caught:
        plait.compile(model)
    assert expected in str(caught.value)


def test_a_decorator_without_a_function_refuses_none():
    with pytest.raises(plait.OptionError, match="not None"):
        plait.compile()(None)


def test_a_module_whose_forward_is_no_python_function():
    class Odd(nn.Module):
        forward = torch.sin

    with pytest.raises(plait.OptionError, match="Compile a function that calls the module"):
        plait.compile(Odd())


def test_descriptors_in_either_order():
    class Thing:
        @plait.compile
        def method(self, x):
            return x + 1

        @staticmethod
        @plait.compile
        def static(x):
            return x + 2

        @plait.compile
        @staticmethod
        def compiled_static(x):
            return x + 3

        @classmethod
        @plait.compile
        def of_class(cls, x):
            return x + 4

        @plait.compile
        @classmethod
        def compiled_of_class(cls, x):
            return x + 5

        @property
        @plait.compile
        def ones(self):
            return torch.ones(2) * 6

    thing, x = Thing(), torch.zeros(2)
    results = [thing.method(x), thing.static(x), thing.compiled_static(x), Thing.of_class(x)]
    results += [thing.compiled_of_class(x), thing.ones]
    assert [result[0].item() for result in results] == [1, 2, 3, 4, 5, 6]
    assert torch.equal(Thing.static(x), Thing.compiled_static(x) - 1)
    assert graphs(Thing.method) == graphs(Thing.static) == graphs(Thing.of_class) == 1


def test_compiling_twice_compiles_what_was_compiled_first():
    inner = plait.compile(twice, backend="eager")
    fast = plait.compile(inner, options={"recompile_limit": 3})
    x = torch.ones(3)
    assert torch.equal(fast(x), twice(x))
    assert plait.report(fast).function == "twice"
    assert plait.report(fast).graphs[0].outcome == "compiled"
    assert graphs(inner) == 0


def test_compiling_a_module_twice_compiles_the_module():
    net = nn.Linear(3, 2).eval()
    fast = plait.compile(plait.compile(net))
    x = torch.randn(4, 3)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), net(x))
    assert graphs(fast) == 1
    assert plait.report(fast).function == "Linear"
    assert list(fast.state_dict()) == list(net.state_dict())


def test_compiling_a_compiled_method_and_a_compiled_call():
    class Scale:
        factor = 3.0

        @plait.compile
        def scaled(self, x):
            return x * self.factor

        @plait.compile
        def __call__(self, x):
            return x + self.factor

    thing, x = Scale(), torch.ones(2)
    for fast, expected in ((plait.compile(thing.scaled), x * 3), (plait.compile(thing), x + 3)):
        assert torch.equal(fast(x), expected)
        assert graphs(fast) == 1


def test_compiled_functions_call_each_other():
    inner = plait.compile(twice)

    @plait.compile
    def outer(x):
        return inner(x + 1) - inner(x)

    x = torch.randn(5)
    torch.testing.assert_close(outer(x), twice(x + 1) - twice(x))


def test_functions_of_every_kind_give_what_eager_gives():
    def decorated(function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            return function(*args, **kwargs)

        return call

    def keywords(x, /, y, *rest, z=1, **more):
        return x * z + y + sum(rest) + sum(more.values())

    x = torch.ones(2)
    assert torch.equal(plait.compile(decorated(twice))(x), twice(x))
    assert torch.equal(plait.compile(decorated(decorated(twice)))(x=x), twice(x))
    assert torch.equal(plait.compile(functools.partial(keywords, z=5))(x, 2), keywords(x, 2, z=5))
    assert torch.equal(plait.compile(keywords)(x, 2, 3, 4, z=2, w=7), x * 2 + 16)
    assert torch.equal(plait.compile(functools.singledispatch(twice))(x), twice(x))
    assert torch.equal(plait.compile(lambda x: x - 1)(x), x - 1)
    assert plait.compile(len)([1, 2]) == 2
    assert torch.equal(plait.compile(torch.Tensor.add)(x, 1), x + 1)
    assert torch.equal(plait.compile(x.add)(1), x + 1)
    assert plait.report(plait.compile(functools.partial(keywords, z=5))).function == "keywords"


def test_coroutines_and_generators_stay_what_they_are():
    import asyncio

    async def later(x):
        return x + 1

    def pieces(x):
        yield x + 1
        yield x + 2

    async def pieces_later(x):
        yield x + 3

    async def collect(x):
        return [each async for each in plait.compile(pieces_later)(x)]

    x = torch.zeros(1)
    assert asyncio.run(plait.compile(later)(x)) == 1
    assert [each.item() for each in plait.compile(pieces)(x)] == [1, 2]
    assert [each.item() for each in asyncio.run(collect(x))] == [3]


def test_a_forward_of_the_instance_is_the_one_that_runs():
    net = nn.Linear(2, 2)
    original = net.forward
    net.forward = lambda x: original(x) * 3
    fast = plait.compile(net)
    x = torch.randn(4, 2)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), net(x))


def test_static_and_partial_forwards():
    class Static(nn.Module):
        @staticmethod
        def forward(x):
            return x * 3

    class Partial(nn.Module):
        def scaled(self, x, factor):
            return x * factor

        forward = functools.partialmethod(scaled, factor=4)

    x = torch.ones(2)
    assert torch.equal(plait.compile(Static())(x), x * 3)
    assert torch.equal(plait.compile(Partial())(x), x * 4)


def test_modules_without_a_forward_raise_as_eager_does():
    for net in (nn.Module(), nn.ModuleList([nn.ReLU()])):
        with pytest.raises(NotImplementedError, match='missing the required "forward"'):
            plait.compile(net)(torch.ones(1))


def test_operators_may_return_numbers_beside_tensors():
    with torch.library._scoped_library("plait_kinds", "DEF") as library:
        library.define("halves(Tensor x) -> (Tensor, int, Tensor)")
        library.impl("halves", lambda x: (x / 2, x.dim(), -x / 2), "CPU")
        library.impl("halves", lambda x: (x / 2, x.dim(), -x / 2), "Meta")

        def program(x):
            first, count, second = torch.ops.plait_kinds.halves(x.sin())
            return first.cos() * count + second

        x = torch.randn(3, 4)
        fast = plait.compile(program, fullgraph=True)
        torch.testing.assert_close(fast(x), program(x))
        assert [graph.outcome for graph in plait.report(fast).graphs] == ["compiled"]
