"""Threads, recursion, errors, interrupts, copies: what programs do to compiled functions."""

from __future__ import annotations

import copy
import io
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback

import pytest
import torch
from torch import nn
from tracer_oracle import compiled, eager_backend

from plait_bytecode_tracer import CompiledFunction, compile_module

X = torch.arange(6.0).reshape(2, 3)
THREADS = 16


def together(work):
    """What `work(n)` gives in each of many threads that begin at once."""
    barrier, found = threading.Barrier(THREADS), [None] * THREADS

    def run(number):
        barrier.wait(60)
        try:
            found[number] = work(number)
        except BaseException as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    finally:
        sys.setswitchinterval(before)
    for error in found:
        if isinstance(error, BaseException):
            raise error
    return found


# Threads.


@pytest.mark.parametrize("native", [False, True], ids=["Python", "native"])
def test_threads_that_call_a_function_at_once_compile_it_once_for_each_shape(native):
    def forward(x, scale):
        total = x * scale
        for row in x:
            total = total + row.sum()
        return total, scale

    fast = compiled(forward, native_guards=native)
    inputs = [torch.full((2 + n % 3, 3), float(n)) for n in range(THREADS)]

    def work(number):
        return [fast(inputs[number], number % 2 + 1) for _ in range(5)]

    for number, results in enumerate(together(work)):
        expected = forward(inputs[number], number % 2 + 1)
        for result in results:
            assert torch.equal(result[0], expected[0])
            assert result[1] == expected[1]
    assert len(fast.entries) <= 6
    assert not fast.breaks


def test_threads_that_call_a_module_and_break_at_once():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x):
            y = self.linear(x)
            if y.sum().item() > 0:  # the graph breaks, and goes on in two ways
                return y + 1
            return y - 1

    net = Net()
    fast = compile_module(net, compiled)
    inputs = [X * (n - THREADS // 2) for n in range(THREADS)]
    for number, results in enumerate(together(lambda n: [fast(inputs[n]) for _ in range(4)])):
        assert all(torch.equal(result, net(inputs[number])) for result in results)


def test_threads_that_compile_different_functions_at_once():
    def make(number):
        space = {"torch": torch}
        exec(f"def made(x):\n    return torch.sin(x) * {number} + {number}", space)
        return space["made"]

    functions = [make(number) for number in range(THREADS)]
    found = together(lambda n: [compiled(functions[n])(X) for _ in range(2)])
    for number, results in enumerate(found):
        assert all(torch.equal(result, functions[number](X)) for result in results)


class Visitor:
    """Its `__enter__` takes as many steps as there are items."""

    def __enter__(self):
        for item in list(ITEMS):
            item.seen = True
        return self

    def __exit__(self, *details):
        return None


class Item:
    seen = False


ITEMS = []


def test_what_another_thread_changes_while_a_call_is_traced():
    """A trace that breaks is made again, and goes another way then."""

    def program(x, number):
        with Visitor():
            y = x + number
        time.sleep(0)  # breaks
        with Visitor():
            return y * 2

    def change():
        while not done.is_set():
            ITEMS[:] = [Item() for _ in range(5 if len(ITEMS) > 5 else 40)]

    done, before = threading.Event(), sys.getswitchinterval()
    thread = threading.Thread(target=change)
    thread.start()
    sys.setswitchinterval(1e-5)
    try:
        for number in range(25):
            assert torch.equal(compiled(program)(X, number), (X + number) * 2)
    finally:
        sys.setswitchinterval(before)
        done.set()
        thread.join(60)


def test_a_reset_in_one_thread_does_not_disturb_the_others():
    fast = compiled(lambda x: x * 2 + 1)

    def work(number):
        for _ in range(10):
            if number == 0:
                fast.reset()
            elif not torch.equal(fast(X + number), (X + number) * 2 + 1):
                return False
        return True

    assert all(together(work))


# Recursion and calls within calls.


def test_a_function_that_calls_its_compiled_self():
    space = {}

    def countdown(x, n):
        return x if n == 0 else space["fast"](x * 2, n - 1) + 1

    def plain(x, n):
        return x if n == 0 else plain(x * 2, n - 1) + 1

    space["fast"] = compiled(countdown)
    for n in (3, 0, 5, 3):
        assert torch.equal(space["fast"](X, n), plain(X, n))


def test_recursion_without_end_raises_and_leaves_the_function_usable():
    space = {}

    def endless(x, n):
        return space["fast"](x + 1, n) if n else x * 2

    space["fast"] = compiled(endless)
    for _ in range(2):
        with pytest.raises(RecursionError):
            space["fast"](X, 1)
        assert torch.equal(space["fast"](X, 0), X * 2)


def test_first_call_near_the_recursion_limit():
    fast = compiled(lambda x: torch.relu(x) + 1)

    def deep(n):
        return fast(X) if n == 0 else deep(n - 1)

    frame, depth = sys._getframe(), 0
    while frame:
        frame, depth = frame.f_back, depth + 1
    assert torch.equal(deep(sys.getrecursionlimit() - depth - 60), torch.relu(X) + 1)
    assert torch.equal(fast(X), torch.relu(X) + 1)


DEEP = """
import sys, torch, plait_bytecode_tracer as tracer
fast = tracer.compile(lambda x: torch.relu(x) + 1, lambda graph, inputs: graph.forward)
x = torch.arange(-3.0, 3.0)
deep = lambda n: fast(x) if n == 0 else deep(n - 1)
assert "plait_bytecode_tracer.tracing" not in sys.modules
for depth in (940, 870, 0):
    assert torch.equal(deep(depth), torch.relu(x) + 1), depth
assert len(tracer.compiled_function_of(fast).entries) == 1
"""


def test_what_traces_is_loaded_at_the_first_call_however_deep_that_is():
    subprocess.run([sys.executable, "-c", DEEP], check=True, timeout=120)


def test_a_backend_that_calls_the_function_it_compiles():
    calls = []

    def backend(graph, inputs, capture):
        calls.append(None)
        if len(calls) < 3:
            calls.append(fast(torch.ones(len(calls) + 3)))
        return graph.forward

    fast = CompiledFunction(lambda x: x * 2, backend)
    for _ in range(3):
        assert torch.equal(fast(X), X * 2)


def test_a_hook_that_calls_its_module():
    module, seen = nn.Linear(3, 3), []
    fast = compile_module(module, compiled)

    def hook(owner, args, result):
        if len(seen) % 2 == 0:
            seen.append(None)
            seen[-1] = fast(args[0] * 2)

    module.register_forward_hook(hook)
    for _ in range(3):
        found = fast(X)
        seen.clear()
        assert torch.equal(found, module(X))
        seen.clear()


# Errors.


class Refused(Exception):
    pass


def innermost(y):
    z = y + 1
    if z.shape[0] == 2:
        raise Refused("two rows", z.shape)
    return z


def middle(x):
    try:
        return innermost(x * 2)
    finally:
        x.add_(0)


def raises_inside(x):
    return middle(x) + 1


def raises_from(x):
    try:
        innermost(x)
    except Refused as error:
        raise ValueError("chained") from error


def raises_in_a_loop(x):
    total = x
    for n in range(3):
        total = total + [1, 2][n]
    return total


def raises_in_torch(x):
    y = x + 1
    return y @ y


def raises_in_the_graph(x):
    at = torch.tensor([0, 9])
    return x[at] + 1


def raises_after_a_break(x):
    if x.sum().item() > 0:
        x = x / x.nothing
    return x


def own_lines(error):
    """The lines of this file that a traceback shows, and so on for its causes."""
    found = []
    while error is not None:
        summary = traceback.extract_tb(error.__traceback__)
        lines = [(frame.name, frame.lineno) for frame in summary if frame.filename == __file__]
        found.append((type(error), str(error), lines[1:]))
        error = error.__cause__ or error.__context__
    return found


@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize(
    "function",
    [raises_inside, raises_from, raises_in_a_loop, raises_in_torch, raises_in_the_graph,
     raises_after_a_break],
)  # fmt: skip
def test_a_traceback_shows_the_user_s_lines(function, calls):
    fast = compiled(function)
    found = []
    for call in (function, *[fast] * calls):
        with pytest.raises(Exception) as caught:  # compared below
            call(X.clone())
        found.append(own_lines(caught.value))
    for lines in found[1:]:
        assert lines == found[0]


# Interrupts.


def deep_module(count=30):
    return nn.Sequential(*(nn.Linear(3, 3) for _ in range(count)))


@pytest.fixture
def ctrl_c():
    """Presses Ctrl-C after some seconds, with Python's own handler."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def modes():
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch._C._len_torch_function_stack(),
        torch._C._len_torch_dispatch_stack(),
        torch._C._functorch.peek_interpreter_stack(),
    )


def test_ctrl_c_at_any_time_leaves_everything_usable(ctrl_c):
    plain, interrupted, before = deep_module(), 0, modes()
    for step in range(1, 13):
        fast = compile_module(plain, compiled)
        try:
            ctrl_c(0.003 * step)
            fast(X)
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            ctrl_c(0)
        assert modes() == before
        assert torch.equal(fast(X), plain(X))
        assert torch.equal(fast(X), plain(X))
    assert interrupted


def test_ctrl_c_in_the_backend_leaves_the_function_to_be_compiled_again():
    pressed = []

    def backend(graph, inputs, capture):
        if len(pressed) < 2:
            pressed.append(None)
            signal.raise_signal(signal.SIGINT)
        return eager_backend(graph, inputs, capture)

    fast, before = CompiledFunction(lambda x: x * 3, backend), modes()
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            fast(X)
        assert modes() == before
        assert not fast.entries
    for _ in range(2):
        assert torch.equal(fast(X), X * 3)
    assert len(fast.entries) == 1


def test_ctrl_c_in_a_thread_s_backend_frees_the_others():
    """What stops one thread's compile gives its lock back."""
    begun = threading.Event()

    def backend(graph, inputs, capture):
        if not begun.is_set():
            begun.set()
            raise KeyboardInterrupt
        return graph.forward

    fast = CompiledFunction(lambda x: x * 3, backend)

    def work(number):
        try:
            return torch.equal(fast(X), X * 3)
        except KeyboardInterrupt:
            return "interrupted"

    found = together(work)
    assert found.count("interrupted") == 1
    assert found.count(True) == THREADS - 1


# Copies.


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("offset", torch.ones(3))
        self.register_buffer("passing", torch.zeros(3), persistent=False)

    def forward(self, x):
        return self.norm(self.linear(x)) + self.offset


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.again = self.block  # one module under two names

    def forward(self, x):
        return self.again(self.block(x))


def through_pickle(module, protocol):
    return pickle.loads(pickle.dumps(module, protocol))


def through_a_file(module, protocol):
    file = io.BytesIO()
    torch.save(module, file, pickle_protocol=max(protocol, 2))
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "deepcopy": lambda module: copy.deepcopy(module),
    **{
        f"{way.__name__} {protocol}": lambda module, way=way, p=protocol: way(module, p)
        for way in (through_pickle, through_a_file)
        for protocol in (2, pickle.HIGHEST_PROTOCOL)
    },
}


@pytest.mark.parametrize("called", [False, True], ids=["new", "called"])
@pytest.mark.parametrize("way", COPIES)
def test_a_copy_of_a_compiled_module_has_the_same_state_and_its_own(way, called):
    plain = Outer()
    fast = compile_module(plain, compiled)
    if called:
        fast(X)
    twin = COPIES[way](fast)
    assert list(twin.state_dict()) == list(plain.state_dict())
    assert [name for name, _ in twin.named_modules()] == [n for n, _ in plain.named_modules()]
    assert twin.again is twin.block
    expected = copy.deepcopy(plain)
    for _ in range(3):
        assert torch.equal(twin(X), expected(X))
    for name, value in twin.state_dict().items():
        assert torch.equal(value, expected.state_dict()[name]), name
    with torch.no_grad():
        twin.block.offset.add_(1)
    assert torch.equal(plain.block.offset, torch.ones(3))
    assert torch.equal(fast.eval()(X), plain.eval()(X))


def test_the_state_of_a_compiled_module_is_the_original_s():
    plain, other = Outer(), Outer()
    fast = compile_module(plain, compiled)
    fast(X)
    assert list(fast.state_dict()) == list(other.state_dict())
    fast.load_state_dict(other.state_dict())
    other.load_state_dict(fast.state_dict())
    assert torch.equal(fast.eval()(X), other.eval()(X))
    assert torch.equal(plain.eval()(X), other(X))


@compiled
def decorated(x):
    return x * 2


def test_a_compiled_function_pickles_by_its_name_and_copies_as_another():
    assert torch.equal(decorated(X), X * 2)
    twin = copy.deepcopy(decorated)
    assert twin is not decorated
    assert torch.equal(twin(X), X * 2)
    assert pickle.loads(pickle.dumps(decorated)) is decorated
