"""Asserts on data: a check in the graph, and plain Python where it fails."""

import contextlib
import weakref

import pytest
import torch

from plait_bytecode_tracer import CompiledFunction, compile, lint
from plait_bytecode_tracer.aftermath.counting import MAX_RETURNS
from plait_utils.checks import CHECK, CheckFailedError, check

X = torch.tensor([1.0, 2.0])


def _asserted(x):
    assert (x > 0).all(), "negative"
    return x * 2


def _captured(module, inputs, capture=None):
    return module.forward


def _unknown(module, inputs):
    """A backend that does not say in which order it runs."""
    return lambda *given: module.forward(*given)


def test_an_assert_is_no_break_and_raises_the_programs_error():
    fast = compile(_asserted, _captured, fullgraph=True)
    assert torch.equal(fast(X), X * 2)
    for _ in range(20):
        with pytest.raises(AssertionError, match="negative") as caught:
            fast(-X)
        assert caught.value.__context__ is None
    assert torch.equal(fast(X), X * 2)
    assert len(fast.entries) == 1
    assert not lint(_asserted, X).breaks


def test_a_check_after_a_change_of_an_input_breaks():
    def program(x, buffer):
        buffer.add_(1)
        assert (x > 0).all()
        return x + buffer

    fast = compile(program, _captured)
    fast(X, torch.zeros(2))
    assert [each.code for each in fast.breaks] == ["GB0003"]


def test_a_large_change_after_a_check_needs_a_backend_that_tells():
    def program(x, buffer):
        assert (x > 0).all()
        buffer.add_(1)
        return x + buffer[:2]

    for backend, size, breaks in (
        (_captured, 1 << 19, []),
        (_unknown, 2, []),
        (_unknown, 1 << 19, ["GB0003"]),
    ):
        fast = compile(program, backend)
        buffer = torch.zeros(size)
        fast(X, buffer)
        with pytest.raises(AssertionError):
            fast(-X, buffer)
        assert buffer.sum() == size
        assert [each.code for each in fast.breaks] == breaks


def test_operators_of_others_run_at_most_once():
    calls = []
    with torch.library._scoped_library("plait_tests_of_checks", "FRAGMENT") as library:
        library.define("note(Tensor x) -> Tensor")
        library.impl("note", lambda x: (calls.append(1), x.clone())[1], "CPU")
        library.impl("note", torch.empty_like, "Meta")
        note = torch.ops.plait_tests_of_checks.note

        def before(x):
            y = note(x)
            assert (y > 0).all()
            return y

        def after(x):
            assert (x > 0).all()
            return note(x)

        for program, backend, breaks, noted in (
            (before, _captured, 1, 1),
            (after, _captured, 0, 0),
            (after, _unknown, 1, 0),
        ):
            fast = compile(program, backend)
            fast(X)
            calls.clear()
            with pytest.raises(AssertionError):
                fast(-X)
            assert len(calls) == noted
            assert len(fast.breaks) == breaks


def test_the_side_that_returns_is_no_error():
    def program(x):
        if (x > 0).all():
            return x
        return -x

    fast = compile(program, _captured)
    assert fast(-X).tolist() == X.tolist()
    assert [each.code for each in fast.breaks] == ["GB0003"]


def test_failed_checks_keep_nothing_alive():
    fast = compile(_asserted, _captured)
    fast(X)
    bad = -X.clone()
    gone = weakref.ref(bad)
    with pytest.raises(AssertionError):
        fast(bad)
    del bad
    assert gone() is None


def test_the_operator_is_what_compilers_see():
    from torch.fx.experimental.proxy_tensor import make_fx

    traced = make_fx(lambda x: check((x > 0).all()), tracing_mode="fake")(X)
    assert CHECK in [node.target for node in traced.graph.nodes]
    with pytest.raises(CheckFailedError):
        traced(-X)


def test_a_program_that_goes_on_after_failures_is_compiled_without_checks():
    def program(x):
        try:
            if (x < 0).any():
                raise ValueError
        except ValueError:
            return -x
        return x

    fast = compile(program, _captured)
    fast(X)
    for _ in range(MAX_RETURNS):
        assert not fast.breaks
        assert torch.equal(fast(-X), X)
    assert torch.equal(fast(-X), X)
    assert [each.code for each in fast.breaks] == ["GB0003"]
    assert torch.equal(fast(X), X)


def test_what_functions_expect_of_their_arguments():
    def program(x):
        torch._check_tensor_all(x > 0, lambda: f"{x.tolist()}")
        torch._check(bool((x < 9).all()), lambda: "too large")
        torch._check_value(x.sum().item() < 15, lambda: "too much")
        return x + 1

    fast = CompiledFunction(program, _captured, fullgraph=True, data_dependent=False)
    assert torch.equal(fast(X), X + 1)
    for factor, error in ((-1, RuntimeError), (8, RuntimeError), (4.25, None), (4.4, None)):
        expected = pytest.raises(error) if error else contextlib.nullcontext()
        with expected:
            assert torch.equal(fast(X * factor), X * factor + 1)
    with pytest.raises(ValueError, match="too much"):
        fast(torch.full((2,), 8.0))
    assert len(fast.entries) == 1
