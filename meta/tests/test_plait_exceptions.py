"""Exceptions: eager's type, words, user lines, and the state that eager leaves behind."""

import traceback

import pytest
import torch
import torch.nn.functional as F

import plait


class Trouble(Exception):
    pass


class Thing:
    def __init__(self):
        self.list, self.dict, self.value = [], {}, None


def outcome(function, *arguments):
    """The exception, and the names of the user's functions in its traceback."""
    with pytest.raises(BaseException) as caught:
        function(*arguments)
    frames = traceback.extract_tb(caught.value.__traceback__)
    lines = [(frame.name, frame.line) for frame in frames if frame.name.startswith("user_")]
    return caught.value, lines


def user_raises(x, thing):
    thing.value = x + 1
    thing.list.append(x.shape[0])
    thing.dict["key"] = x * 2
    x.add_(1)
    raise Trouble("no", x.shape)


def user_helper(x, thing):
    thing.list.append(1)
    raise KeyError("missing")


def user_calls(x, thing):
    y = x * 2
    thing.value = y
    user_helper(y, thing)


def user_mutates_then_fails(x, thing):
    x.mul_(3)
    return x.view(7)


def user_divides(x, thing):
    thing.list.append(x.numel())
    return x * (1 / 0)


def user_asserts(x, thing):
    assert x.shape[0] == 99, f"shape {tuple(x.shape)}"
    return x


def user_breaks_then_fails(x, thing):
    y = x + 1
    if y.sum() > 0:
        thing.list.append(3)
        raise Trouble(y.sum().item() > -100)


def user_exits(x, thing):
    thing.value = 3
    raise SystemExit(4)


def user_interrupts(x, thing):
    thing.value = x + 3
    raise KeyboardInterrupt


PYTHON = [
    user_raises,
    user_calls,
    user_mutates_then_fails,
    user_divides,
    user_asserts,
    user_breaks_then_fails,
    user_exits,
    user_interrupts,
]


@pytest.mark.parametrize("function", PYTHON, ids=lambda function: function.__name__)
def test_an_exception_of_the_user_is_eagers(function):
    fast = plait.compile(function)
    for _ in range(2):
        eager_x, fast_x = torch.ones(3, 3), torch.ones(3, 3)
        eager_thing, fast_thing = Thing(), Thing()
        expected, expected_lines = outcome(function, eager_x, eager_thing)
        actual, actual_lines = outcome(fast, fast_x, fast_thing)
        assert type(actual) is type(expected)
        assert str(actual) == str(expected)
        assert list(dict.fromkeys(actual_lines)) == expected_lines
        assert torch.equal(fast_x, eager_x)
        assert fast_thing.list == eager_thing.list
        assert fast_thing.dict.keys() == eager_thing.dict.keys()
        torch.testing.assert_close(fast_thing.value, eager_thing.value)


def test_an_exception_that_is_caught_inside():
    def program(x, thing):
        try:
            user_helper(x * 2, thing)
        except KeyError as error:
            return x + 1, str(error)
        finally:
            thing.value = 5

    x, thing = torch.ones(2), Thing()
    result, text = plait.compile(program)(x, thing)
    assert torch.equal(result, x + 1)
    assert text == "'missing'"
    assert (thing.value, thing.list) == (5, [1])


def test_causes_are_kept():
    def program(x):
        try:
            raise Trouble("first")
        except Trouble as error:
            raise ValueError("second") from error

    with pytest.raises(ValueError, match="second") as caught:
        plait.compile(program)(torch.ones(1))
    assert isinstance(caught.value.__cause__, Trouble)


def user_embedding(x, index):
    x.mul_(2)
    return F.embedding(index, x) + 1


def user_gather(x, index):
    return torch.gather(x, 0, index[:, None].expand(-1, 3)) * 2


def user_index(x, index):
    return x[index] * 2


def user_scatter(x, index):
    return x.index_fill(0, index, 1.0)


def user_stores(x, index):
    y = x * 2
    y[index] = 1.0
    return y


@pytest.mark.parametrize(
    "function",
    [user_embedding, user_gather, user_index, user_scatter, user_stores],
    ids=lambda function: function.__name__,
)
@pytest.mark.parametrize("gradients", [False, True])
def test_an_error_while_a_graph_runs_is_eagers_at_the_users_line(function, gradients, caplog):
    fast = plait.compile(function)
    good, bad = torch.tensor([0, 2]), torch.tensor([0, 7])

    def inputs():
        leaf = torch.ones(3, 3, requires_grad=gradients)
        return leaf * 1

    torch.testing.assert_close(fast(inputs(), good), function(inputs(), good))
    eager_x, fast_x = inputs(), inputs()
    expected, expected_lines = outcome(function, eager_x, bad)
    actual, actual_lines = outcome(fast, fast_x, bad)
    assert (type(actual), str(actual)) == (type(expected), str(expected))
    assert actual_lines == expected_lines
    assert torch.equal(fast_x, eager_x)
    torch.testing.assert_close(fast(inputs(), good), function(inputs(), good))
    assert "which is a bug" not in caplog.text


@pytest.mark.parametrize("handles", [False, True])
def test_what_comes_before_an_error_happens_though_the_graph_changes_an_input(handles):
    def program(x, index, seen):
        seen.append("begun")
        x.add_(1)
        if not handles:
            return torch.arange(3.0)[index] + x
        try:
            return torch.arange(3.0)[index] + x
        except IndexError:
            seen.append("out of range")
            return x * 2

    fast = plait.compile(program)
    for place in (1, 7, 2):
        found = []
        for run in (program, fast):
            x, seen = torch.zeros(3), []
            try:
                result = run(x, torch.tensor([place]), seen)
            except IndexError as error:
                result = error
            found.append((str(result), x.tolist(), seen))
        assert found[1] == found[0]


@pytest.mark.parametrize("mutates", [False, True])
def test_a_program_that_fails_costs_a_warning_and_not_the_result(monkeypatch, caplog, mutates):
    import plait_cpp_codegen

    real = plait_cpp_codegen.build

    def broken(program, **keywords):
        def run(*inputs):
            raise RuntimeError("broken program")

        made = real(program, **keywords)
        object.__setattr__(made, "run", run)
        return made

    def program(x):
        return (x.add_(1) if mutates else x) * 2

    monkeypatch.setattr(plait_cpp_codegen, "build", broken)
    fast = plait.compile(program)
    x, y = torch.ones(3), torch.ones(3)
    assert torch.equal(fast(x), program(y))
    assert torch.equal(x, y)
    assert "the compiled program of program-0 failed, which is a bug" in caplog.text
    assert "broken program" in caplog.text


def test_an_interrupt_in_a_stage_leaves_everything_usable(monkeypatch):
    import plait_ir_lowering

    real = plait_ir_lowering.lower
    calls = []

    def interrupted(*arguments, **keywords):
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return real(*arguments, **keywords)

    def program(x):
        return torch.tanh(x) * 2

    monkeypatch.setattr(plait_ir_lowering, "lower", interrupted)
    fast = plait.compile(program)
    x = torch.randn(4)
    with pytest.raises(KeyboardInterrupt):
        fast(x)
    assert type(torch.ones(1) + 1) is torch.Tensor
    assert torch.is_grad_enabled()
    torch.testing.assert_close(fast(x), program(x))
    (graph,) = plait.report(fast).graphs
    assert graph.outcome == "compiled"


RAN = []


@torch.library.custom_op("plait_tests::limited", mutates_args=())
def limited(x: torch.Tensor) -> torch.Tensor:
    RAN.append(len(x))
    if x.sum() > 3:
        raise KeyError("too much")
    return x * 2


@limited.register_fake
def _(x):
    return torch.empty_like(x)


@pytest.mark.parametrize(
    ("program", "good", "bad", "kind"),
    [
        (lambda x, i: limited(x + 1).sin(), (torch.zeros(2), 0), (torch.ones(2), 0), KeyError),
        (
            lambda x, i: limited(x)[i] + 1,
            (torch.zeros(2), torch.tensor([1])),
            (torch.zeros(2), torch.tensor([5])),
            IndexError,
        ),
    ],
)
def test_operators_of_the_users_run_once_where_a_program_raises(program, good, bad, kind):
    run = plait.compile(program)
    run(*good)
    RAN.clear()
    with pytest.raises(kind):
        run(*bad)
    assert RAN == [2]
