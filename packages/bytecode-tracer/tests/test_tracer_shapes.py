"""Symbolic sizes and numbers: how many specialisations, which guards, and why."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings

import pytest
import torch
from tracer_oracle import compiled

from plait_bytecode_tracer import CompiledFunction, compile, mark_dynamic, mark_static
from plait_utils.checks import CheckFailedError


def run(function, *argument_sets, **options):
    """The compiled function, after calls that each give what eager gives."""
    made = compiled(function, **options)
    for arguments in argument_sets:
        expected = function(*arguments)
        torch.testing.assert_close(made(*arguments), expected)
    return made


def rows(*counts):
    return [(torch.randn(n, 3),) for n in counts]


def relations(made):
    return [g.text for entry in made.entries for g in entry.capture.guards
            if g.kind.value == "relation"]  # fmt: skip


def test_a_size_that_changes_is_symbolic_from_the_second_compilation_on():
    made = run(lambda x: x * x.shape[0] + 1, *rows(3, 4, 5, 9, 3, 100))
    assert len(made.entries) == 2
    assert not relations(made)


@pytest.mark.parametrize(("dynamic", "count"), [(None, 2), (True, 1), (False, 4)])
def test_dynamic_says_when(dynamic, count):
    made = run(lambda x, n, f: x * n + f, *[(torch.ones(n), n, n / 4) for n in (2, 3, 4, 7)],
               dynamic=dynamic)  # fmt: skip
    assert len(made.entries) == count


def test_sizes_0_and_1_are_their_own():
    made = run(lambda x: x.sum(0) * 2, *rows(4, 5, 1, 0, 6, 1))
    assert len(made.entries) == 4


def halves(x):
    n = x.shape[0]
    if n % 2 == 0:
        return x[: n // 2]
    return x


def test_a_branch_on_a_size_is_guarded_in_the_users_words():
    made = run(halves, *rows(3, 5, 7, 4, 6, 8, 9))
    assert len(made.entries) == 3
    assert "x.size(0) % 2 != 0" in relations(made)
    assert "x.size(0) % 2 == 0" in [text.replace("(", "").replace(")", "").replace(
        "x.size0", "x.size(0)") for text in relations(made)]  # fmt: skip
    reason = str(made.recompiles[1])
    assert "x.size(0) % 2 != 0 no longer holds: now x.size(0) = 4" in reason
    assert "test_tracer_shapes.py" in reason
    assert "if n % 2 == 0" in reason


def test_sizes_that_are_equal_by_chance_are_not_taken_for_equal():
    def both(a, b):
        return a.sum() + b.sum(), a.shape[0] == b.shape[0]

    made = run(both, *[(torch.ones(n), torch.ones(m)) for n, m in ((4, 4), (5, 5), (6, 3))])
    assert len(made.entries) == 2

    def added(a, b):
        return a + b if a.shape == b.shape else torch.cat([a, b])

    made = run(added, *[(torch.ones(n), torch.ones(m)) for n, m in ((4, 4), (5, 5), (6, 3))])
    assert len(made.entries) == 3
    assert "a.size(0) == b.size(0)" in relations(made)


def test_strides_follow_sizes_only_where_they_do():
    def flat(x):
        return x.reshape(-1), x.stride(0)

    whole = [(torch.randn(n, m),) for n, m in ((2, 3), (3, 4), (4, 6))]
    made = run(flat, *whole, (torch.randn(5, 9)[:, :4],), (torch.randn(6, 6)[:, :5],))
    assert "x.stride(0) == x.size(1) * x.stride(1)" in relations(made)


def test_results_are_plain_numbers():
    made = compiled(lambda x: (x.shape[0], x.shape, x.numel() / 2, f"{len(x)} rows"))
    for n in (2, 3, 4):
        size, shape, half, text = made(torch.ones(n, 3))
        assert (type(size), size) == (int, n)
        assert (type(shape), shape) == (torch.Size, (n, 3))
        assert (type(half), half) == (float, n * 1.5)
        assert text == f"{n} rows"
    assert len(made.entries) == 2


def test_a_counter_of_a_module_does_not_recompile_for_ever():
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.step, self.rate = 0, 1.0

        def forward(self, x):
            self.step += 1
            self.rate *= 0.5
            return x * self.step * self.rate

    model = Counting()
    made = compile(model, lambda module, inputs: module.forward)
    for step in range(1, 20):
        assert torch.equal(made(torch.ones(2)), torch.ones(2) * step * 0.5**step)
    assert len(made._plait_compiled.entries) == 2


def test_marks_bound_a_size():
    made = compiled(lambda x: x + x.shape[0])
    x = torch.ones(4, 2)
    mark_dynamic(x, 0, min=3, max=8)
    for given in (x, torch.ones(8, 2), torch.ones(3, 2)):
        assert torch.equal(made(given), given + len(given))
    assert len(made.entries) == 1
    assert torch.equal(made(torch.ones(9, 2)), torch.ones(9, 2) + 9)
    assert len(made.entries) == 2


def test_marks_of_static_sizes_and_of_numbers():
    made = compiled(lambda x, n: x * n)
    for n in (2, 3, 4):
        x = torch.ones(n)
        mark_static(x)
        mark_dynamic(made, "n", max=100)
        assert torch.equal(made(x, n), x * n)
        assert torch.equal(made(x, n + 10), x * (n + 10))
    assert len(made.entries) == 3


def test_wrong_marks_are_refused():
    with pytest.raises(IndexError):
        mark_dynamic(torch.ones(2), 1)
    with pytest.raises(ValueError, match="min=3"):
        mark_dynamic(torch.ones(2), 0, min=3, max=2)
    with pytest.raises(TypeError, match="are marked"):
        mark_dynamic(3, 0)


def test_data_dependent_sizes_stay_in_the_graph():
    def positive(x):
        chosen = x[x > 0]
        return chosen * 2, chosen.shape[0] + 1, x.nonzero().shape

    made = run(positive, (torch.tensor([1.0, -1, 2]),), (torch.tensor([-1.0, -1, -2]),))
    assert len(made.entries) == 1
    assert not made.breaks


@pytest.mark.parametrize(
    ("settings", "floats", "sizes"),
    [
        ({}, 0, 0),
        ({"data_dependent": False}, 0, 1),
        ({"data_dependent": False, "data_floats": False}, 1, 1),
    ],
)
def test_floats_that_depend_on_data_stay_in_the_graph_where_sizes_break_it(settings, floats, sizes):
    calls = [(torch.tensor([1.5, 2.5]),), (torch.tensor([4.0, 0.5]),)]
    made = run(lambda x: x / max(x.sum().item(), 1.0), *calls, **settings)
    assert len(made.breaks) == floats
    made = run(lambda x: (x * 2).nonzero() + 1, *calls, **settings)
    assert len(made.breaks) == sizes


def doubtful(x):
    return x[x > 0].squeeze() + torch.ones(4)


def test_a_backend_that_checks_sizes_is_given_all_that_is_assumed_of_them():
    def backend(module, *_):
        def run(*inputs):
            if (inputs[0] > 0).sum() < 2:
                raise CheckFailedError
            return module(*inputs)

        return run

    made = CompiledFunction(
        doubtful, backend, fullgraph=True, data_dependent=False, data_sizes=True
    )
    for count in (4, 1, 3):
        x = torch.ones(5)
        x[count:] = -1
        if count == 3:
            with pytest.raises(RuntimeError, match="must match the size"):
                made(x)
        else:
            assert torch.equal(made(x), doubtful(x))
    assert len(made.entries) == 1


def test_sizes_break_the_graph_where_it_could_not_be_undone():
    def program(x, out):
        out.random_()
        out.copy_(x)
        y = x[x > 0]
        out.mul_(2)
        return y.squeeze() * 2

    made = CompiledFunction(program, lambda module, *_: module, data_sizes=True)
    for count in (4, 1, 0):
        x = torch.ones(5)
        x[count:] = -1
        one, other = torch.zeros(5), torch.zeros(5)
        assert torch.equal(made(x, one), program(x, other))
        assert torch.equal(one, other)


def test_what_python_asks_of_a_size_says_which_operator_gave_it():
    def program(x):
        y = torch.masked_select(x, x > 0)
        return y + 1 if y.shape[0] > 3 else y

    made = CompiledFunction(program, lambda module, *_: module, data_sizes=True)
    assert torch.equal(made(torch.ones(5)), torch.full((5,), 2.0))
    assert "masked_select.size(0) > 3" in made.breaks[0].reason


def reading(program):
    """A program, as a backend takes it that checks what is assumed of data."""
    made = CompiledFunction(
        program, lambda module, *_: module, data_dependent=False, data_sizes=True
    )
    for count in (2, 4, 3, 5):
        x = torch.ones(6)
        x[count:] = -1
        marks = (x > 0).long()
        assert torch.equal(made(x, marks), program(x, marks))
    return made


def test_an_integer_that_is_read_is_a_size_a_place_and_a_number():
    def program(x, marks):
        n = int(marks.sum())
        parts = x[:n], torch.arange(n), x[n].view(1), torch.tensor([n]), torch.zeros(1) + 0.9**n
        return torch.cat([*parts, torch.full((1,), max(n, 3) // 2)])

    made = reading(program)
    assert (len(made.entries), len(made.breaks)) == (1, 0)


def test_integers_are_read_several_at_once():
    def program(x, marks):
        first, second = marks.view(2, 3).sum(1).tolist()
        return torch.cat([x[:first], torch.arange(second)])

    assert len(reading(program).entries) == 1


def test_the_value_of_an_integer_that_can_be_known_is_guarded_where_it_is_asked_for():
    def program(x, marks):
        n = int(marks.sum())
        m = int((x > 0).sum())
        x = x[:m] * 2
        for place in range(n):
            x = x + place
        return x

    made = reading(program)
    assert len(made.entries) == 4
    assert "int(marks.sum()) is" in str(made.recompiles[0])
    assert not any("x > 0" in str(each) for each in made.recompiles)


def test_an_integer_that_only_the_run_gives_breaks_where_it_is_asked_for():
    def program(x, marks):
        n = int((x > 0).sum())
        y = x[:n] * 2
        return y if n > 3 else -y

    made = reading(program)
    assert [each.code for each in made.breaks] == ["GB0003"]
    assert "torch" not in made.breaks[0].reason
    assert len(made.entries) == 1


def test_a_backend_refuses_what_it_cannot_check():
    def backend(module, *_):
        if any(node.target == "item" for node in module.graph.nodes):
            raise CheckFailedError
        return module

    def program(x):
        return x[: int((x > 0).sum())] * 2

    made = CompiledFunction(program, backend, data_dependent=False, data_sizes=True)
    for count in (4, 2, 3):
        x = torch.ones(5)
        x[count:] = -1
        assert torch.equal(made(x), program(x))
    assert [each.code for each in made.breaks] == ["GB0004"]


def test_an_integer_breaks_where_the_graph_could_not_be_undone():
    def program(x, marks):
        x.add_(torch.rand_like(x, dtype=torch.float32).mul(0))
        marks.random_(0, 1)
        return x[: int((x > 0).sum())]

    made = CompiledFunction(program, lambda module, *_: module, data_sizes=True)
    x = torch.tensor([1.0, 2, -1])
    assert torch.equal(made(x.clone(), torch.ones(2).long()), x[:2])


def test_what_is_assumed_of_data_breaks_the_graph():
    made = run(lambda x: x[x > 0] + torch.ones(2), (torch.tensor([1.0, -1, 2]),),
               (torch.tensor([-1.0, 1.0, -2]),))  # fmt: skip
    assert made.breaks[0].code == "GB0004"


def test_a_number_in_a_tensor_is_symbolic_until_python_needs_it():
    def scaled(x):
        number = x.sum().item()
        y = x * number
        return y if number > 1 else -y

    made = run(scaled, *[(torch.tensor(v),) for v in ([1.0, 2.0], [0.0, 0.5], [3.0, 4.0])])
    assert len(made.entries) == 1
    assert [each.code for each in made.breaks] == ["GB0003"]


def test_specialisations_are_bounded(caplog):
    made = run(lambda x: [row * 2 for row in x], *rows(*range(2, 14)))
    assert len(made.entries) == 8
    assert "8 specialisations" in caplog.text
    assert "x.size(0)" in caplog.text


SCRIPT = """
import sys, torch
from plait_bytecode_tracer import CompiledFunction
made = CompiledFunction(lambda x: x * 2, lambda module, inputs, capture: module)
made(torch.ones(2)), made(torch.ones(3)), made(torch.ones(4))
assert len(made.entries) == 2
assert "torch._dynamo" not in sys.modules and "torch._inductor" not in sys.modules
"""


def test_symbols_load_no_compiler_of_torchs():
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=120)


def test_a_size_that_depends_on_data_is_the_reason_where_torch_fails_to_say_so(monkeypatch) -> None:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    def fail(*_: object) -> None:
        raise AttributeError("'NoneType' object has no attribute 'filename'")

    monkeypatch.setattr(ShapeEnv, "_get_stack_summary", fail)
    made = compiled(lambda x: sum(row.sum() for row in x.nonzero()))
    assert made(torch.tensor([1.0, 0.0, 2.0])) == 2
    assert [found.reason for found in made.breaks] == [
        "unbind needs a size or number that depends on data"
    ]


def test_products_and_texts_of_several_sizes_are_symbolic():
    def f(x):
        count = math.prod(x.shape[:2], start=x.shape[2])
        text = f"{tuple(x.shape)} {[x.shape[0], 7]} {(x.shape[1],)!r} " + str((3, x.shape[0]))
        return x.reshape(count) * math.prod((2, x.shape[0], 3)), math.prod([]), text

    made = compiled(f, dynamic=True)
    for sizes in ((2, 3, 4), (3, 4, 5), (4, 5, 6)):
        x = torch.ones(sizes)
        found, one, text = made(x)
        wanted, _, words = f(x)
        assert torch.equal(found, wanted)
        assert (one, text) == (1, words)
    assert len(made.entries) == 1


def test_products_and_texts_that_are_not_of_ints_are_those_of_python():
    def f(x):
        return x * math.prod((x.shape[0], 0.5)), f"{(x.shape[0], 'a')} {(x.shape[0], [1])!s}"

    made = compiled(f, dynamic=True)
    for n in (2, 3):
        assert made(torch.ones(n))[1] == f(torch.ones(n))[1]
        assert torch.equal(made(torch.ones(n))[0], torch.ones(n) * n / 2)


@pytest.mark.parametrize("action", ["always", "default", "ignore"])
def test_a_warning_that_tells_a_size_breaks_nothing(action):
    def f(x):
        warnings.warn(f"sizes are {tuple(x.shape)}", stacklevel=1)
        return x + 1

    def heard(function):
        with warnings.catch_warnings(record=True) as found:
            warnings.resetwarnings()
            warnings.simplefilter(action)
            for n in (2, 3, 3, 4):
                assert torch.equal(function(torch.ones(n)), torch.ones(n) + 1)
        globals().pop("__warningregistry__", None)
        return [str(each.message) for each in found]

    made = compiled(f, dynamic=True, fullgraph=True)
    assert heard(made) == heard(f)
    assert len(made.entries) == 1


def test_a_warning_whose_text_decides_breaks():
    def f(x):
        warnings.warn(f"sizes are {x.shape[0]}", stacklevel=1)
        return x + 1

    made = compiled(f, dynamic=True)
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.filterwarnings("error", message="sizes are 3")
        assert torch.equal(made(torch.ones(2)), torch.ones(2) + 1)
        with pytest.raises(UserWarning, match="sizes are 3"):
            made(torch.ones(3))
