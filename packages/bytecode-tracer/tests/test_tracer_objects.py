"""Compiled objects: what they keep alive, share, copy; objects that are one where two were."""

import copy
import gc
import inspect
import pickle
import signal
import threading
import weakref

import pytest
import torch
from torch import nn

from plait_bytecode_tracer import (
    CompiledFunction,
    compile,
    compile_module,
    compiled_function_of,
)


def as_it_is(module, inputs, *_):
    return module.forward


def compiled(function, **options):
    return CompiledFunction(function, as_it_is, **options)


class Small(nn.Module):
    def __init__(self, scale=2):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.scale = scale

    def forward(self, x):
        return self.linear(x) * self.scale


def small():
    return compile_module(Small(), compiled)


# Lifetimes.


def test_a_compiled_function_keeps_no_module_alive_that_it_was_called_with():
    fast = compiled(lambda module, x: module(x))
    module = Small()
    dead = weakref.ref(module)
    fast(module, torch.ones(2, 3))
    del module
    gc.collect()
    assert dead() is None


def test_a_compiled_module_keeps_no_replaced_submodule_alive():
    fast = small()
    fast(torch.ones(2, 3))
    dead = weakref.ref(fast.linear)
    fast.linear = nn.Identity()
    gc.collect()
    assert dead() is None


@pytest.mark.parametrize("holds", [lambda t: t, lambda t: [t], lambda t: {"t": t}])
def test_a_compiled_function_keeps_no_input_alive(holds):
    def total(value):
        return sum(value.values()) + 1 if isinstance(value, dict) else value[0] + 1

    fast, tensor = compiled(total), torch.ones(2)
    dead = weakref.ref(tensor)
    result = fast(holds(tensor))
    del tensor
    gc.collect()
    assert dead() is None
    assert result is not None


def test_a_dropped_compiled_module_frees_its_original():
    fast = small()
    fast(torch.ones(2, 3))
    dead = weakref.ref(fast), weakref.ref(fast._plait_original)
    del fast
    gc.collect()
    assert [reference() for reference in dead] == [None, None]


# Sharing.


def test_modules_of_a_class_share_what_was_compiled_for_one():
    fast = compiled(lambda module, x: module(x))
    modules = [Small() for _ in range(20)]
    x = torch.ones(2, 3)
    assert all(torch.equal(fast(module, x), module(x)) for module in modules)
    assert len(fast.entries) == 1


@pytest.mark.parametrize("native_guards", [False, True])
def test_objects_that_are_one_are_not_taken_for_two(native_guards):
    def counted(one, other, x):
        one.scale += 1
        other.scale += 1
        return x * one.scale

    fast, x = compiled(counted, native_guards=native_guards), torch.ones(2)
    first, second, third = Small(), Small(), Small()
    assert fast(first, second, x).tolist() == [3, 3]
    assert fast(third, third, x).tolist() == [4, 4]
    assert third.scale == 4


def test_lists_that_are_one_are_not_taken_for_two():
    def grown(one, other, x):
        one.append(1)
        other.append(2)
        return x, len(one)

    fast, x, shared = compiled(grown), torch.ones(2), []
    assert fast([], [], x)[1] == 1
    assert fast(shared, shared, x)[1] == 2
    assert shared == [1, 2]


# Copies.


def test_a_shallow_copy_is_compiled_and_has_attributes_of_its_own():
    fast = small()
    other = copy.copy(fast)
    other.scale = 5
    x = torch.ones(2, 3)
    assert type(other) is type(fast)
    assert other.linear is fast.linear
    assert fast.scale == 2
    assert torch.equal(other(x), fast.linear(x) * 5)
    assert torch.equal(fast(x), fast.linear(x) * 2)


def test_a_pickled_module_is_one_of_the_class_that_was_compiled():
    fast = small()
    fast(torch.ones(2, 3))
    again = pickle.loads(pickle.dumps(fast))
    assert type(again) is Small
    assert list(again.state_dict()) == list(fast.state_dict())


def test_a_lazy_module_takes_its_shape_from_the_first_call():
    fast = compile(nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d()), lambda g, i: g.forward)
    x = torch.ones(2, 3)
    first = fast(x)
    assert list(fast.state_dict())[:2] == ["0.weight", "0.bias"]
    assert fast[0].weight.shape == (4, 3)
    assert torch.equal(fast(x), first)


def test_a_compiled_module_inside_a_compiled_function_is_traced_through():
    inner = small()
    fast = compiled(lambda x: inner(x) + 1)
    x = torch.ones(2, 3)
    for _ in range(3):
        assert torch.equal(fast(x), inner(x) + 1)
    assert (len(fast.entries), fast.breaks) == (1, [])


# Signals.


class Interrupted(Exception):
    pass


def _deep():
    return nn.Sequential(*(nn.Linear(3, 3) for _ in range(40)))


def _call_with_alarm(function, seconds, x):
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        return function(x)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.fixture
def alarms():
    """Sets the handler of SIGALRM; the one before comes back."""
    before = signal.getsignal(signal.SIGALRM)
    yield lambda handler: signal.signal(signal.SIGALRM, handler)
    signal.signal(signal.SIGALRM, before)


def test_what_a_signal_handler_raises_while_tracing_goes_to_the_caller(alarms):
    def interrupt(number, frame):
        raise Interrupted

    alarms(interrupt)
    plain, x, interrupted = _deep(), torch.ones(2, 3), 0
    for seconds in (0.002, 0.004, 0.008, 0.012, 0.02, 0.03):
        fast = compile_module(plain, compiled)
        try:
            _call_with_alarm(fast, seconds, x)
        except Interrupted:
            interrupted += 1
        assert torch.equal(fast(x), plain(x))
        assert signal.getsignal(signal.SIGALRM) is interrupt
    assert interrupted


def test_a_signal_handler_that_returns_does_not_stop_the_trace(alarms):
    seen = []
    alarms(lambda number, frame: seen.append(number))
    plain, x = _deep(), torch.ones(2, 3)
    fast = compile_module(plain, compiled)
    assert torch.equal(_call_with_alarm(fast, 0.004, x), plain(x))
    assert seen == [signal.SIGALRM]
    assert len(fast._plait_compiled.entries) == 1


# Threads.


def test_threads_that_flip_modes_and_shapes_get_what_eager_gives():
    def forward(x, flag):
        y = x * 2 if flag else x + 1
        return y.sum(0), torch.is_grad_enabled()

    fast = compiled(forward, recompile_limit=64)
    wrong = []

    def work(number):
        with torch.set_grad_enabled(number % 2 == 0):
            for step in range(12):
                x = torch.full((number % 3 + 1, step % 4 + 1), float(number), requires_grad=True)
                flag = (number + step) % 2 == 0
                result, expected = fast(x, flag), forward(x, flag)
                same = torch.equal(result[0], expected[0]) and result[1] is expected[1]
                if not same or result[0].requires_grad is not expected[0].requires_grad:
                    wrong.append((number, step))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# Callable objects.


def callable_objects():
    """An object, its class and one that inherits from it, defined anew."""

    class Scale:
        by = 2

        def __call__(self, x):
            return x * self.by

    class Other(Scale):
        def __call__(self, x):
            return super().__call__(x) - 100

    return Scale(), Scale, Other


def test_a_callable_object_is_called_as_its_class_says_at_the_time():
    held, cls, other = callable_objects()
    x = torch.ones(2)
    fast = compile(held, as_it_is)
    again = compile(fast, as_it_is)
    called = CompiledFunction(lambda x: fast(x) + 1, as_it_is)

    def assert_same():
        for _ in range(2):
            for made in (fast, again):
                assert torch.equal(made(x), held(x))
            assert torch.equal(called(x), held(x) + 1)
            assert torch.equal(fast(x=x), held(x))

    assert_same()
    assert compiled_function_of(fast).entries
    held.__class__ = other
    assert_same()
    cls.__call__ = lambda self, x: -x
    assert_same()
    held.__class__ = cls
    assert_same()
    assert compiled_function_of(fast).function is cls.__call__
    cls.__call__ = staticmethod(lambda x: x + 7)
    assert_same()
    del cls.__call__
    with pytest.raises(TypeError, match="not callable"):
        fast(x)


def test_a_compiled_callable_object_shows_its_method():
    held, cls, _ = callable_objects()
    fast = compile(held, as_it_is)
    assert fast.__self__ is held
    assert fast.__name__ == "__call__"
    assert [*inspect.signature(fast).parameters] == ["x"]
    copied = copy.deepcopy(fast)
    copied.__self__.by = 5
    assert torch.equal(copied(torch.ones(2)), torch.full((2,), 5.0))
    assert torch.equal(fast(torch.ones(2)), torch.full((2,), 2.0))
    assert cls.by == 2
