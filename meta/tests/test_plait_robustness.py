"""The whole pipeline under threads, Ctrl-C and copies: everything stays usable, and right."""

from __future__ import annotations

import copy
import pickle
import signal
import threading

import pytest
import torch
from torch import nn

import plait

THREADS = 16
by_backend = pytest.mark.parametrize(
    "options",
    [{"backend": "python"}, pytest.param({}, marks=pytest.mark.slow)],
    ids=["Python", "default"],
)
X = torch.randn(4, 8)
DENSE = [0.002 * n for n in range(1, 36)]
"""Seconds into a compile: about as many as one takes without a C++ compiler."""
SPARSE = [0.01, 0.03, 0.06]


def model(width=12):
    return nn.Sequential(nn.Linear(8, width), nn.GELU(), nn.BatchNorm1d(width), nn.Linear(width, 8))


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
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    for error in found:
        if isinstance(error, BaseException):
            raise error
    return found


@by_backend
def test_threads_that_compile_one_function_at_once(options):
    def program(x, scale):
        return torch.tanh(x * scale).sum(-1), scale

    fast = plait.compile(program, **options)
    inputs = [torch.full((2 + n % 2, 8), float(n)) for n in range(THREADS)]

    def work(number):
        with torch.set_grad_enabled(number % 4 == 0):
            return [fast(inputs[number], 3) for _ in range(3)]

    for number, results in enumerate(together(work)):
        for result in results:
            torch.testing.assert_close(result[0], program(inputs[number], 3)[0])


@by_backend
def test_threads_that_compile_and_train_modules_of_one_class(options):
    plain = [model() for _ in range(THREADS)]
    expected = copy.deepcopy(plain)

    def work(number):
        fast = plait.compile(plain[number], **options)
        fast(X).square().sum().backward()
        return fast(X).detach()

    for result, module in zip(together(work), expected, strict=True):
        module(X).square().sum().backward()
        torch.testing.assert_close(result, module(X).detach(), rtol=1e-4, atol=1e-5)
    for one, other in zip(plain, expected, strict=True):
        for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-4)


def modes():
    return (
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch._C._len_torch_function_stack(),
        torch._C._len_torch_dispatch_stack(),
    )


@by_backend
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.sampled(5)
def test_ctrl_c_at_any_time_of_a_compile_leaves_everything_usable(training, options):
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        found, interrupted = modes(), 0
        with torch.set_grad_enabled(training):
            plait.compile(model(9), **options)(X)
        for step, seconds in enumerate([*(DENSE if options else SPARSE), 0.1, 0.2, 0.5]):
            plain = model(12 + step)
            fast = plait.compile(plain, **options)
            with torch.set_grad_enabled(training):
                try:
                    try:
                        signal.setitimer(signal.ITIMER_REAL, seconds)
                        fast(X)
                    finally:
                        signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    interrupted += 1
            assert modes() == found
            plain.eval()
            with torch.set_grad_enabled(training):
                for _ in range(2):
                    torch.testing.assert_close(fast(X), plain(X), rtol=1e-4, atol=1e-5)
        assert interrupted
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    "way", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"]
)
def test_copies_of_a_compiled_module_have_the_same_state(way):
    plain = model()
    fast = plait.compile(plain, backend="python")
    fast(X)
    twin = way(fast)
    assert list(twin.state_dict()) == list(fast.state_dict()) == list(plain.state_dict())
    plain.eval()
    twin.eval()
    torch.testing.assert_close(twin(X), plain(X), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        twin[0].weight.zero_()
    assert plain[0].weight.abs().sum() > 0
    other = model()
    other.load_state_dict(fast.state_dict())
    torch.testing.assert_close(other.eval()(X), plain(X), rtol=1e-4, atol=1e-5)
