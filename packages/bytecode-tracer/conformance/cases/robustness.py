"""Threads, re-entrancy, copies of compiled things, odd functions, hostile surroundings."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import pickle
import sys
import threading
import types

import torch
from torch import nn

from conformance.declare import call, case, scenario, t, with_x

TRACED = []


def in_threads(program, *args):
    """The results of four calls at once, in the order of the threads."""
    results = [None] * 4

    def run(index):
        try:
            results[index] = program(*copy.deepcopy(args), index)
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@case(lambda: [(t(2, 3),), (t(4, 3),), (t(2, 3),)], drive=in_threads)
def called_from_threads(x, index):
    return x * 2 + x.shape[0]


@case(lambda: [(t(2, 3),), (t(4, 3),)], drive=in_threads)
def specialised_in_threads(x, index):
    return x * index, index


@case(lambda: [(t(2, 3),), (t(4, 3),)], drive=in_threads)
def raising_in_threads(x, index):
    if index % 2:
        raise ValueError(index)
    return x + index


@case(lambda: [(t(2, 3),)], drive=in_threads)
def breaking_in_threads(x, index):
    y = x + index
    threading.get_ident()
    return y * 2


LOCAL = threading.local()


@case(lambda: [(t(2),), (t(3),)], drive=in_threads)
def thread_local_state(x, index):
    LOCAL.level = index
    return x * LOCAL.level


def _once_in_thread(program, *args):
    """One call in another thread, where torch's modes have their defaults."""
    result = []
    with torch.no_grad():
        here = program(*args)
        thread = threading.Thread(target=lambda: result.append(program(*args)))
        thread.start()
        thread.join()
    return here, result[0]


@case(lambda: [(t(2, grad=True),), (t(3, grad=True),)], drive=_once_in_thread)
def grad_mode_of_the_thread(x):
    return x * 2, torch.is_grad_enabled()


def _nested(program, x):
    return program(x, lambda y: program(y, None))


@case(lambda: [(t(2),), (t(3),)], drive=_nested)
def program_calls_itself_compiled(x, function):
    return x + 1 if function is None else function(x * 2) + 1


def _twice(program, x):
    return [program(x), program(x), program(program(x))]


@case(lambda: [(t(2),), (t(3),)], drive=_twice)
def result_fed_back(x):
    return x * 2


def _half_consumed(program, x):
    made = program(x)
    first = next(made)
    other = program(x + 1)
    return first, next(other), list(made)


@case(lambda: [(t(2),), (t(3),)], drive=_half_consumed)
def generator_function_compiled(x):
    for i in range(3):
        yield x * i


@case(lambda: [(t(2),), (t(3),)], drive=_half_consumed)
def function_that_returns_generator(x):
    return (x * i for i in range(3))


@case(lambda: [(t(2),), (t(3),)], drive=lambda program, x: asyncio.run(program(x)))
async def coroutine_compiled(x):
    await asyncio.sleep(0)
    return x * 2


async def doubled(x):
    await asyncio.sleep(0)
    return x * 2


@case(lambda: [(t(2),), (t(3),)])
def event_loop_inside(x):
    async def both():
        return await asyncio.gather(doubled(x), doubled(x + 1))

    return asyncio.run(both())


@case(lambda: [(t(2),), (t(3),)])
def coroutine_closed_unawaited(x):
    made = doubled(x)
    made.close()
    return x + 1, inspect.iscoroutinefunction(doubled)


def _async_for(program, x):
    async def collect():
        return [value async for value in program(x)]

    return asyncio.run(collect())


@case(lambda: [(t(2),), (t(3),)], drive=_async_for)
async def asynchronous_generator(x):
    for i in range(2):
        await asyncio.sleep(0)
        yield x * i


def _source_less():
    namespace = {"torch": torch}
    exec("def made(x, n):\n    return torch.sin(x) * n", namespace)
    return namespace["made"]


@scenario(with_x(1, 2))
def without_source():
    return _source_less()


@case(with_x(1, 2))
def calls_function_without_source(x, n):
    return _source_less()(x, n)


@case(with_x("x * 2", "x + 1", "undefined", "1 +"))
def evaluates_text(x, text):
    return eval(text, {"x": x})


@case(with_x(1, 2))
def executes_text(x, n):
    namespace = {"x": x, "n": n}
    exec("y = x * n\ndef f(a):\n    return a + n", namespace)
    return namespace["f"](namespace["y"])


@scenario(with_x(1, 2))
def code_replaced_by_hand():
    def program(x, n):
        return x * n + 5

    program.__code__ = program.__code__.replace(co_consts=(None, 7), co_name="other")
    return program


@scenario(with_x(1, 2))
def rebuilt_function():
    def program(x, n=3, *, k=4):
        return x * n + k

    made = types.FunctionType(program.__code__, globals(), "renamed", (9,))
    made.__kwdefaults__ = {"k": 1}
    return made


def _traced(program, *args):
    seen = []
    sys.settrace(lambda frame, event, arg: seen.append(event))
    try:
        return program(*args)
    finally:
        sys.settrace(None)


@case(with_x(1, 2), drive=_traced)
def under_a_debugger(x, n):
    return x * n


def _profiled(program, *args):
    sys.setprofile(lambda frame, event, arg: None)
    try:
        return program(*args)
    finally:
        sys.setprofile(None)


@case(with_x(1, 2), drive=_profiled)
def under_a_profiler(x, n):
    return x * n


def _state_of(program):
    return list(program.state_dict()), program.training, isinstance(program, nn.Module)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.linear = nn.Linear(3, 3)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x):
        return self.linear(x) * self.scale


def _module(drive):
    """A scenario that compiles a module and uses it in the given way."""

    def declare(function):
        def build():
            made = Small()
            return made, made

        build.__name__ = function.__name__
        declared = types.FunctionType(build.__code__, globals(), function.__name__)
        return scenario(lambda m: [(t(2, 3),), (t(4, 3),)], drive=drive)(declared)

    return declare


@_module(lambda m, x: (m(x), _state_of(m), [n for n, _ in m.named_parameters()]))
def state_of_compiled_module(): ...


@_module(lambda m, x: (m(x), copy.deepcopy(m)(x), copy.deepcopy(m).linear is m.linear))
def deep_copy_of_compiled_module(): ...


@_module(lambda m, x: (m(x), pickle.loads(pickle.dumps(m))(x)))
def pickled_compiled_module(): ...


@_module(lambda m, x: (m(x), m.eval().training, m.train().training, m(x)))
def modes_of_compiled_module(): ...


@_module(
    lambda m, x: (m(x), m.load_state_dict(Small().double().state_dict()), m.double()(x.double()))
)
def compiled_module_converted(): ...


@_module(lambda m, x: nn.Sequential(m, nn.ReLU(), m)(x))
def compiled_module_inside_another(): ...


@_module(lambda m, x: (m(x), setattr(m, "scale", torch.tensor(5.0)), m(x), m.scale))
def attribute_set_on_compiled_module(): ...


@_module(lambda m, x: (m.forward(x), m(x=x)))
def forward_and_keywords_of_compiled_module(): ...


@_module(lambda m, x: (m.zero_grad(), m(x).sum().backward(), m.linear.weight.grad))
def gradients_through_compiled_module(): ...


@_module(lambda m, x: torch.nn.utils.parameters_to_vector(m.parameters()).sum() + m(x).sum())
def parameters_of_compiled_module(): ...


def _signature(program, x):
    return str(inspect.signature(program)), program.__name__, program.__doc__, program(x)


@case(lambda: [(t(2),), (t(3),)], drive=_signature)
def name_signature_and_doc(x, *, scale=2):
    """The documentation."""
    return x * scale


def _method(program, x):
    class Holder:
        scale = 3
        run = program

    holder = Holder()
    return holder.run(x), Holder.run(holder, x)


@case(lambda: [(t(2),), (t(3),)], drive=_method)
def compiled_function_as_method(self, x):
    return x * self.scale


@case(lambda: [(t(2),), (t(3),)], drive=lambda program, x: functools.partial(program, n=3)(x))
def partial_of_compiled_function(x, n):
    return x * n


@case(
    lambda: [
        (t(2), 2),
    ],
    drive=lambda program, x, n: list(map(program, [x, x + 1], [n, 3])),
)
def mapped_compiled_function(x, n):
    return x * n


def _interrupted(program, x):
    class Interrupting:
        def __index__(self):
            raise KeyboardInterrupt("pressed")

    try:
        program(x, Interrupting())
    except KeyboardInterrupt as error:
        return str(error), program(x, 1)


@case(lambda: [(t(3),), (t(2),)], drive=_interrupted)
def interrupted_and_called_again(x, n):
    return x[n] * 2


def _failed(program, x):
    try:
        program(x, 0)
    except ZeroDivisionError as error:
        return str(error), program(x, 2), len(error.__traceback__.tb_frame.f_code.co_name) > 0


@case(lambda: [(t(3),), (t(2),)], drive=_failed)
def failed_and_called_again(x, n):
    x.add_(1)
    return x * (6 // n)


@case(lambda: [(t(2), 950), (t(2), 10)], drive=lambda program, x, n: program(x, n))
def deep_recursion(x, n):
    def down(k):
        return 0 if k == 0 else 1 + down(k - 1)

    try:
        return x + down(n * 2 if n > 100 else n)
    except RecursionError as error:
        return type(error), x


@case(lambda: [(t(2), 300), (t(2), 5)])
def long_program(x, n):
    for i in range(n):
        x = x + 1
    return x


@case(with_x(print, len, abs, int, [].append))
def builtin_as_argument(x, function):
    return callable(function), getattr(function, "__name__", "?"), x


@case(with_x(1, 2))
def frames_and_stacks(x, n):
    frame = sys._getframe()
    return frame.f_code.co_name, frame.f_locals["n"], inspect.currentframe() is frame, x


@case(with_x(1, 2))
def ids_and_sizes(x, n):
    items = [x]
    return id(items) == id(items), sys.getsizeof(()) > 0, hash("a") == hash("a"), type(id(x))


@case(lambda: [call(t(2), self=1, function=2), call(t(2), self=3, args=(1,), kwargs={"a": 1})])
def keywords_named_as_internals(x, **named):
    return {key: (x, value) for key, value in named.items()}


@case(lambda: [(t(2), 1), (t(2), 2)])
def names_as_generated_code_uses(_v0, _out):
    _graph, _miss, entry = _v0 * 2, _out, "entry"
    return _graph, _miss, entry, _v0, _out


@case(with_x(1, 2))
def lock_held(x, n):
    lock = threading.Lock()
    with lock:
        y = x * n
        inside = lock.locked()
    return y, inside, lock.locked()


@case(with_x(1, 2))
def thread_started_inside(x, n):
    results = []
    thread = threading.Thread(target=lambda: results.append(x * n))
    thread.start()
    thread.join()
    return results


@case(lambda: [(t(2), [1]), (t(2), [1, 2])], drive=lambda program, *args: program(*args))
def argument_refers_to_itself(x, items):
    items.append(items)
    return items[-1] is items, len(items)


class AsyncManager:
    async def __aenter__(self):
        await asyncio.sleep(0)
        return 3

    async def __aexit__(self, *args):
        return False


@case(lambda: [(t(2),), (t(3),)], drive=lambda program, x: asyncio.run(program(x)))
async def asynchronous_manager(x):
    async with AsyncManager() as n:
        return x * n


@case(with_x(1, 2))
def star_import(x, n):
    namespace = {}
    exec("from math import *", namespace)
    return x * namespace["floor"](n + 0.5), x.sum() * namespace["pi"]


def _counted(program, x):
    before = threading.active_count()
    results = [program(x + i) for i in range(20)]
    return results, threading.active_count() - before


@case(lambda: [(t(2),), (t(3),)], drive=_counted)
def many_calls(x):
    return x * 2


def _mixed(program, x):
    return program(x), program(x.double()), program(x[None]), program(x), program(x.double())


@case(lambda: [(t(2),), (t(3),)], drive=_mixed)
def specialisations_in_turn(x):
    return x * 2, x.dim()
