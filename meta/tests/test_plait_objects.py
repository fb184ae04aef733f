"""Compiled modules as modules, threads that share a function, and what is let go of."""

import copy
import gc
import io
import pickle
import threading
import weakref

import pytest
import torch
from torch import nn

import plait


def make():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU()).eval()


@pytest.fixture
def pair():
    """A module, and the same module compiled."""
    torch.manual_seed(0)
    net = make()
    with torch.no_grad():
        yield net, plait.compile(net, backend="python")


X = torch.linspace(-1, 1, 15).view(5, 3)


def test_copies_share_or_own_as_those_of_the_module(pair):
    net, fast = pair
    expected = net(X)
    deep, shallow = copy.deepcopy(fast), copy.copy(fast)
    for clone in (deep, shallow, pickle.loads(pickle.dumps(fast))):
        torch.testing.assert_close(clone(X), expected)
    assert deep[0].weight.data_ptr() != net[0].weight.data_ptr()
    assert shallow[0].weight is net[0].weight
    assert plait.report(deep).backend == "python"
    buffer = io.BytesIO()
    torch.save(fast, buffer)
    buffer.seek(0)
    torch.testing.assert_close(torch.load(buffer, weights_only=False)(X), expected)


def test_a_compiled_module_is_used_as_the_module_is(pair):
    net, fast = pair
    assert isinstance(fast, nn.Sequential)
    assert (len(fast), fast[0]) == (3, net[0])
    assert [name for name, _ in fast.named_parameters()] == [n for n, _ in net.named_parameters()]
    assert fast.train() is fast
    assert net.training
    fast.eval()
    fast.add_module("last", nn.Tanh())
    torch.testing.assert_close(fast(X), net(X))
    fast.load_state_dict(nn.Sequential(*make(), nn.Tanh()).state_dict())
    torch.testing.assert_close(fast(X), net(X))
    assert fast.double() is fast
    torch.testing.assert_close(fast(X.double()), net(X.double()))
    fast.float()
    parent = nn.Sequential(fast, nn.Tanh())
    torch.testing.assert_close(parent(X), net(X).tanh())
    torch.testing.assert_close(plait.compile(parent, backend="python")(X), net(X).tanh())


def test_functional_transforms_see_what_they_put_in(pair):
    net, fast = pair
    zeros = {name: torch.zeros_like(value) for name, value in net.named_parameters()}
    call = torch.func.functional_call
    torch.testing.assert_close(call(fast, zeros, (X,)), call(net, zeros, (X,)))
    torch.testing.assert_close(fast(X), net(X))
    wave = plait.compile(lambda x: torch.sin(x).sum(), backend="python")
    torch.testing.assert_close(torch.vmap(wave)(X), X.sin().sum(-1))
    torch.testing.assert_close(torch.func.grad(wave)(X), X.cos())


def test_higher_gradients_and_hooks():
    wave = plait.compile(lambda x: (x.sin() * x).sum(), backend="python")
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(wave, (x,))
    assert torch.autograd.gradgradcheck(wave, (x,))
    doubled = plait.compile(lambda x: x * 2, backend="python")(x)
    doubled.register_hook(lambda gradient: gradient * 5)
    doubled.sum().backward()
    assert x.grad.tolist() == [10, 10, 10]


def test_what_is_dropped_is_freed():
    def used_up():
        net, function = nn.Linear(3, 3), plait.compile(lambda x: x + 1, backend="python")
        fast = plait.compile(net, backend="python")
        x = torch.randn(2, 3)
        with torch.no_grad():
            kept = [net, fast, function, x, fast(x), function(x)]
        return [weakref.ref(each) for each in kept]

    references = used_up()
    gc.collect()
    assert [reference() for reference in references] == [None] * len(references)


def program(x, k):
    y = torch.sin(x) * k
    if y.sum() > 0:
        return y.cos()
    return y - 1


def in_threads(work, count=4):
    """Runs `work(n)` at once in threads; what they raise is raised."""
    barrier, errors = threading.Barrier(count), []

    def run(number):
        try:
            barrier.wait(60)
            work(number)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "a deadlock"
    if errors:
        raise errors[0]


def call_often(fast, number):
    generator = torch.Generator().manual_seed(number)
    for turn in range(6):
        x = torch.randn(2 + (number + turn) % 3, 3, generator=generator)
        with torch.no_grad():
            torch.testing.assert_close(fast(x, 2), program(x, 2))


@pytest.mark.parametrize("limit", [2, 50])
def test_threads_compile_and_call_one_function_with_breaks(limit):
    options = {"recompile_limit": limit}
    fast = plait.compile(program, backend="python", options=options)
    in_threads(lambda number: call_often(fast, number))


def test_threads_compile_functions_of_their_own():
    in_threads(lambda number: call_often(plait.compile(program, backend="python"), number))


def test_reset_and_report_while_threads_call():
    fast = plait.compile(program, backend="python", options={"recompile_limit": 50})

    def work(number):
        if number == 0:
            for _ in range(5):
                plait.reset()
                str(plait.report(fast))
        else:
            call_often(fast, number)

    in_threads(work)


def test_a_call_that_waits_for_another_thread_blocks_no_one():
    """The first call waits in Python, inside of the compiled function, for the second."""
    arrived = threading.Event()

    @plait.compile(backend="python")
    def meet(x, waits):
        y = x + 1
        if waits:
            assert arrived.wait(100)
        else:
            arrived.set()
        return y * 2

    def work(number):
        assert torch.equal(meet(torch.ones(2), number == 0), torch.full((2,), 4.0))

    in_threads(work, count=2)
    arrived.clear()
    in_threads(work, count=2)


def test_recursion_through_compiled_functions():
    @plait.compile(backend="python")
    def down(x, n):
        return x if n == 0 else down(x + 1, n - 1) * 2

    assert down(torch.zeros(1), 4).item() == 64
    assert down(torch.zeros(1), 2).item() == 8
