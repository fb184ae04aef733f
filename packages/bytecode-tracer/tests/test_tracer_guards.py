"""Guards: whatever a trace assumed is checked at the next call."""

from __future__ import annotations

import copy
import functools
import pickle
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn
from tracer_oracle import compiled, eager_backend

from plait_bytecode_tracer import CompiledFunction, compile_module, compiled_function_of

X = torch.ones(2, 3)
FACTOR = 2


def calls(function, *variants):
    """Compiled and eager results of each call agree; how many specialisations there are."""
    made = compiled(function)
    for args in variants:
        torch.testing.assert_close(made(*args), function(*args), rtol=0, atol=0)
    return len(made.entries)


@pytest.mark.parametrize(
    "second",
    [
        torch.ones(3, 3),
        torch.ones(2, 3, dtype=torch.float64),
        torch.ones(3, 2).T,
        torch.ones(2, 3, 1),
        torch.ones(2, 3, requires_grad=True),
        nn.Parameter(torch.ones(2, 3)),
    ],
    ids=["shape", "dtype", "strides", "rank", "requires_grad", "parameter"],
)
def test_other_tensor_makes_another_specialisation(second):
    assert calls(lambda x: x.sum(0) + x.shape[0], (X,), (second,), (X,)) == 2


def test_other_number_makes_another_specialisation():
    assert calls(lambda x, n: x * n, (X, 2), (X, 3), (X, 2), (X, 2.0), (X, True)) == 4


@pytest.mark.parametrize(("has_gpu", "count"), [(True, 2), (False, 1)])
def test_deterministic_algorithms_are_guarded_where_there_is_a_gpu(monkeypatch, has_gpu, count):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: has_gpu)
    made = compiled(lambda x: x + 1)
    made(X)
    torch.use_deterministic_algorithms(True)
    try:
        made(X)
    finally:
        torch.use_deterministic_algorithms(False)
    made(X)
    assert len(made.entries) == count


def test_signed_zero_is_told_apart():
    assert calls(lambda x, n: x / n, (X, 0.0), (X, -0.0)) == 2


def test_global_change_is_noticed():
    def scale(x):
        return x * FACTOR

    made = compiled(scale)
    assert made(X)[0, 0] == 2
    globals()["FACTOR"] = 5
    try:
        assert made(X)[0, 0] == 5
    finally:
        globals()["FACTOR"] = 2


def test_closure_change_is_noticed():
    factor = 2

    def scale(x):
        return x * factor

    made = compiled(scale)
    assert made(X)[0, 0] == 2
    factor = 7
    assert made(X)[0, 0] == 7


def test_containers_are_guarded():
    def total(items, table):
        return sum(items) + table["a"] * len(table)

    assert calls(total, ([X, X], {"a": X}), ([X], {"a": X}), ([X], {"a": X, "b": 1})) == 3


def test_grad_mode_is_guarded():
    made = compiled(lambda x: x * 2)
    weight = torch.ones(2, requires_grad=True)
    assert made(weight).requires_grad
    with torch.no_grad():
        assert not made(weight).requires_grad
    assert len(made.entries) == 2


def test_monkeypatched_method_is_noticed():
    class Thing:
        def run(self, x):
            return x + 1

    thing = Thing()
    made = compiled(lambda t, x: t.run(x))
    assert made(thing, X)[0, 0] == 2
    Thing.run = lambda self, x: x + 10
    assert made(thing, X)[0, 0] == 11


def test_recompile_names_the_guard_and_the_line():
    made = compiled(lambda x: x + 1)
    made(X)
    made(torch.ones(5))
    text = str(made.recompiles[0])
    assert "[2, 3]" in text
    assert "needed by" in text


def test_recompile_limit_runs_eagerly():
    made = compiled(lambda x, n: x + n, recompile_limit=2)
    for n in range(5):
        torch.testing.assert_close(made(X, n), X + n)
    assert len(made.entries) == 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.5))
        self.norm = nn.BatchNorm1d(4)
        self.scale = 1.0

    def forward(self, x):
        return self.norm(self.body(x)) * self.scale


def compiled_net():
    torch.manual_seed(0)
    net = Net()
    return net, compile_module(net, lambda f: CompiledFunction(f, eager_backend))


def test_module_behaves_as_itself():
    net, made = compiled_net()
    assert isinstance(made, Net)
    assert list(made.state_dict()) == list(net.state_dict())
    made.eval()
    assert not net.training
    torch.testing.assert_close(made(X), net(X))
    made.scale = 3.0
    assert net.scale == 3.0
    torch.testing.assert_close(made(X), net(X))


def test_training_mode_updates_buffers_and_draws_the_same_numbers():
    net, made = compiled_net()
    twin = copy.deepcopy(net)
    torch.manual_seed(1)
    expected = twin(torch.ones(4, 3))
    torch.manual_seed(1)
    actual = made(torch.ones(4, 3))
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(net.norm.running_mean, twin.norm.running_mean)
    made.eval()
    twin.eval()
    torch.testing.assert_close(made(X), twin(X))


def test_replaced_parameter_is_used():
    net, made = compiled_net()
    made.eval()
    made(X)
    net.body[0].weight = nn.Parameter(torch.zeros(4, 3))
    torch.testing.assert_close(made(X), net(X))
    net.body[0] = nn.Linear(3, 4)
    torch.testing.assert_close(made(X), net(X))


def test_hooks_run():
    net, made = compiled_net()
    made.eval()
    made(X)
    seen = []
    net.body[1].register_forward_hook(lambda module, args, out: seen.append(out.shape))
    torch.testing.assert_close(made(X), net(X))
    assert len(seen) == 2
    net.register_forward_hook(lambda module, args, out: out + 1)
    torch.testing.assert_close(made(X), net(X))


def test_module_copies_and_pickles():
    net, made = compiled_net()
    made.eval()
    expected = net(X)
    torch.testing.assert_close(copy.deepcopy(made)(X), expected)
    torch.testing.assert_close(pickle.loads(pickle.dumps(made))(X), expected)
    assert compiled_function_of(copy.deepcopy(made)).entries == ()


def test_threads_share_a_compiled_function():
    made = compiled(lambda x, n: (x * n).sum(0), dynamic=False)
    failures = []

    def work(n):
        for _ in range(20):
            if not torch.equal(made(X, n), (X * n).sum(0)):
                failures.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 3, 1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(made.entries) == 3


def test_wrong_arguments_raise_as_in_eager():
    made = compiled(lambda x: x + 1)
    with pytest.raises(TypeError, match="positional argument"):
        made(X, X)


def test_opcodes_are_those_of_this_python():
    import dis

    from plait_bytecode_tracer.opcodes import registered

    assert registered() <= set(dis.opmap)


def test_torch_compiler_is_not_imported():
    program = (
        "import sys, torch\n"
        "from plait_bytecode_tracer import CompiledFunction\n"
        "f = CompiledFunction(lambda x: torch.relu(x).view(-1) * 2, lambda g, i, c: g.forward)\n"
        "f(torch.ones(2, 2))\n"
        "assert f.entries\n"
        "assert 'torch._inductor' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


AFTER_TORCH_COMPILER = """
import copy
import functools
import torch
from torch._dynamo.mutation_guard import install_generation_tagging_init
from plait_bytecode_tracer import CompiledFunction

class Stack(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for layer in self.layers[:2]:  # another list is made
            x = layer(x)
        return copy.copy(self.layers[2])(x)

model, x = Stack(), torch.randn(2, 4)
f = CompiledFunction(lambda x: model(x), lambda g, i, c: g.forward)
expected = model(x)
assert torch.equal(f(x), expected) and not f.breaks, f.breaks
before = torch.nn.Module.__init__
install_generation_tagging_init()
assert torch.nn.Module.__init__ is not before
for _ in range(2):
    assert torch.equal(f(x), expected) and not f.breaks, f.breaks
assert len(f.entries) == 2, f.eager_reason

def made(x):
    layer = torch.nn.Identity()
    layer.scale = 2.0
    return layer, layer(x) * layer.scale

layer, value = CompiledFunction(made, lambda g, i, c: g.forward)(x)
assert type(layer) is torch.nn.Identity and layer.scale == 2.0 and torch.equal(value, x * 2)
"""


def test_modules_are_made_in_the_graph_once_torch_compiler_has_run():
    """From then on `Module.__init__` and `__setstate__` are functions of its own."""
    subprocess.run([sys.executable, "-c", AFTER_TORCH_COMPILER], check=True)


def test_a_long_assumption_is_told_in_brief():
    table = {f"key{n}": n for n in range(500)}

    def program(x):
        for key in table:
            x = x + table[key]
        return x

    made = compiled(program)
    made(torch.ones(2))
    table["more"] = 1
    made(torch.ones(2))
    text = str(made.recompiles[0])
    assert "'key0'" in text
    assert "'key499'" in text
    assert len(text) < 1000


def test_another_function_with_a_cache_is_met(monkeypatch):
    def f(x):
        return x + remembered(3)

    made = compiled(f)
    assert made(torch.zeros(1)) == 6
    for factor in (4, 5):
        monkeypatch.setitem(globals(), "remembered", functools.lru_cache(lambda k, n=factor: k * n))
        assert made(torch.zeros(1)) == 3 * factor


@functools.lru_cache
def remembered(number):
    return number * 2
