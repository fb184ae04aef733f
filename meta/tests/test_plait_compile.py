"""plait.compile on functions, methods, modules and callable objects behaves as eager does."""

import copy
import functools
import io
import os
import pickle
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

import plait


def rows(x, y):
    return torch.softmax(x * y, dim=-1) + torch.tanh(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.LayerNorm(16)
        self.second = nn.Linear(16, 4)

    def forward(self, x, scale=1.0):
        return self.second(self.norm(torch.relu(self.first(x)))) * scale


def compiled_graphs(fast):
    report = plait.report(fast)
    assert [graph.outcome for graph in report.graphs] == ["compiled"] * len(report.graphs), report
    return report.graphs


def test_a_function_is_compiled_and_agrees_with_eager():
    fast = plait.compile(rows)
    x, y = torch.randn(16, 32), torch.randn(16, 32)
    torch.testing.assert_close(fast(x, y), rows(x, y))
    assert len(compiled_graphs(fast)) == 1
    assert fast.__name__ == "rows"


def test_both_decorator_forms():
    @plait.compile
    def plain(x):
        return x + 1

    @plait.compile(fullgraph=True)
    def called(x):
        return x + 2

    x = torch.zeros(3)
    assert torch.equal(plain(x), x + 1)
    assert torch.equal(called(x), x + 2)
    assert len(compiled_graphs(plain)) == len(compiled_graphs(called)) == 1


def test_a_module_keeps_its_state_and_copies_and_pickles():
    net = Net().eval()
    fast = plait.compile(net)
    x = torch.randn(5, 8)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), net(x))
        assert len(compiled_graphs(fast)) == 1
        assert isinstance(fast, Net)
        assert list(fast.state_dict()) == list(net.state_dict())
        clone = copy.deepcopy(fast)
        clone.second.bias.add_(1.0)
        torch.testing.assert_close(clone(x), net(x) + 1.0)
        loaded = pickle.loads(pickle.dumps(fast))
        torch.testing.assert_close(loaded(x), net(x))
        buffer = io.BytesIO()
        torch.save(fast.state_dict(), buffer)


def test_a_change_of_parameters_is_seen():
    net = Net().eval()
    fast = plait.compile(net)
    x = torch.randn(5, 8)
    with torch.no_grad():
        fast(x)
        net.first.weight.mul_(2.0)
        torch.testing.assert_close(fast(x), net(x))
        fast.load_state_dict(Net().state_dict())
        torch.testing.assert_close(fast(x), net(x))
        net.second = nn.Linear(16, 4)
        torch.testing.assert_close(fast(x), net(x))


def test_bound_methods_callable_objects_partials_and_builtins():
    class Scale:
        factor = 3.0

        def __call__(self, x):
            return x * self.factor

        def shifted(self, x):
            return x + self.factor

    thing, x = Scale(), torch.randn(4)
    assert torch.equal(plait.compile(thing.shifted)(x), x + 3.0)
    assert torch.equal(plait.compile(thing)(x), x * 3.0)
    torch.testing.assert_close(plait.compile(functools.partial(rows, y=x))(x), rows(x, x))
    torch.testing.assert_close(plait.compile(torch.sin)(x), x.sin())


def test_keyword_default_and_python_arguments():
    net = Net().eval()
    fast = plait.compile(net)
    x = torch.randn(2, 8)
    with torch.no_grad():
        torch.testing.assert_close(fast(x=x, scale=2.0), net(x, 2.0))
        torch.testing.assert_close(fast(x, 3.0), net(x, 3.0))
        torch.testing.assert_close(fast(x), net(x))


def test_other_shapes_dtypes_and_strides_recompile_and_say_why():
    fast = plait.compile(rows)
    for made in (
        lambda: torch.randn(4, 8),
        lambda: torch.randn(6, 8),
        lambda: torch.randn(4, 8, dtype=torch.float64),
        lambda: torch.randn(8, 4).t(),
    ):
        x, y = made(), made()
        result, expected = fast(x, y), rows(x, y)
        assert result.stride() == expected.stride()
        torch.testing.assert_close(result, expected)
    report = plait.report(fast)
    assert len(report.graphs) == 4
    assert len(report.recompiles) == 3
    assert "no longer holds" in str(report.recompiles[0])


def test_deterministic_algorithms_have_programs_of_their_own(monkeypatch):
    """Where there is a GPU, on which these combine otherwise; to go back compiles nothing."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    fast = plait.compile(lambda x, where, rows: x.index_add(0, where, rows))
    given = torch.randn(5, 3), torch.randint(0, 5, (20,)), torch.randn(20, 3)
    found = []
    try:
        for on in (False, True, False, True):
            torch.use_deterministic_algorithms(on)
            found.append(fast(*given))
    finally:
        torch.use_deterministic_algorithms(False)
    for each in found:
        torch.testing.assert_close(each, given[0].index_add(0, *given[1:]))
    assert len(compiled_graphs(fast)) == 2


def test_exceptions_are_those_of_eager():
    def multiply(x, y):
        return x @ y

    def index(table, key):
        return table[key] + 1

    fast = plait.compile(multiply)
    with pytest.raises(RuntimeError) as eager:
        multiply(torch.ones(2, 3), torch.ones(2, 3))
    with pytest.raises(RuntimeError) as compiled:
        fast(torch.ones(2, 3), torch.ones(2, 3))
    assert str(compiled.value) == str(eager.value)
    with pytest.raises(KeyError, match="missing"):
        plait.compile(index)({}, "missing")
    with pytest.raises(TypeError, match="y"):
        fast(torch.ones(2, 3))


def test_an_embedding_index_out_of_range_raises():
    table = nn.Embedding(4, 8)
    fast = plait.compile(table)
    with torch.no_grad():
        torch.testing.assert_close(fast(torch.tensor([1, 3])), table(torch.tensor([1, 3])))
        with pytest.raises((IndexError, RuntimeError)):
            fast(torch.tensor([1, 4]))


def test_a_graph_break_continues_correctly(capsys):
    def program(x):
        y = torch.sin(x) * 2
        if float(y.sum()) > -100:
            print("large")
        return torch.cos(y) + 1

    fast = plait.compile(program)
    x = torch.randn(32)
    torch.testing.assert_close(fast(x), program(x))
    assert capsys.readouterr().out == "large\nlarge\n"
    report = plait.report(fast)
    assert report.breaks
    assert report.breaks[0].code.startswith("GB")
    assert "test_plait_compile.py" in report.breaks[0].line


def test_a_branch_on_a_tensor_takes_the_right_side():
    def program(x):
        y = x * 2
        if y.sum() > 0:
            return y + 1
        return y - 1

    fast = plait.compile(program)
    for x in (torch.ones(4), -torch.ones(4), torch.ones(4)):
        torch.testing.assert_close(fast(x), program(x))


def test_fullgraph_raises_at_a_break():
    def program(x):
        return x * 2 if x.sum() > 0 else x

    with pytest.raises(Exception, match="fullgraph"):
        plait.compile(program, fullgraph=True)(torch.ones(3))


def test_inputs_are_mutated_as_in_eager():
    def program(x, y):
        x.mul_(2)
        y[1:].add_(x[1:])
        return x + y

    fast = plait.compile(program)
    x, y = torch.randn(6), torch.randn(6)
    a, b = x.clone(), y.clone()
    torch.testing.assert_close(fast(x, y), program(a, b))
    torch.testing.assert_close(x, a)
    torch.testing.assert_close(y, b)


def test_outputs_alias_as_in_eager():
    def program(x):
        return x, x.view(-1), x[0], x + 1

    fast = plait.compile(program)
    x = torch.randn(2, 3)
    same, flat, row, fresh = fast(x)
    assert same is x
    x.zero_()
    assert not flat.any()
    assert not row.any()
    assert fresh.data_ptr() != x.data_ptr()


def test_gradients_are_compiled_and_right():
    net = Net()
    fast = plait.compile(net)
    x = torch.randn(5, 8)
    fast(x).square().sum().backward()
    compiled = [parameter.grad.clone() for parameter in net.parameters()]
    net.zero_grad()
    net(x).square().sum().backward()
    for got, wanted in zip(compiled, net.parameters(), strict=True):
        torch.testing.assert_close(got, wanted.grad)
    report = plait.report(fast)
    assert [graph.name for graph in report.graphs] == ["Net-0", "Net-0.backward"]
    with torch.no_grad():
        torch.testing.assert_close(fast(x), net(x))
    assert [graph.outcome for graph in plait.report(fast).graphs] == ["compiled"] * 3


def test_threads_may_call_one_function():
    fast = plait.compile(rows)
    inputs = [torch.randn(n, 8) for n in (4, 4, 5, 6, 5, 4)]
    results, errors = [None] * len(inputs), []

    def work(position):
        try:
            for _ in range(5):
                results[position] = fast(inputs[position], inputs[position])
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for x, result in zip(inputs, results, strict=True):
        torch.testing.assert_close(result, rows(x, x))
    # threads that come first compile for their own sizes
    assert 2 <= len(plait.report(fast).graphs) <= 3


def test_reset_forgets():
    fast = plait.compile(rows)
    x = torch.randn(3, 4)
    fast(x, x)
    plait.reset()
    assert not plait.report(fast).graphs
    torch.testing.assert_close(fast(x, x), rows(x, x))
    assert len(plait.report(fast).graphs) == 1


@pytest.mark.parametrize("backend", ["eager", "noop", "aten", "checking", "printing", "python"])
def test_every_backend_agrees(backend, capsys):
    fast = plait.compile(rows, backend=backend)
    x, y = torch.randn(4, 8), torch.randn(4, 8)
    torch.testing.assert_close(fast(x, y), rows(x, y))
    assert ("aten" in capsys.readouterr().out) == (backend == "printing")


def test_the_dumping_backend_writes_files(tmp_path, monkeypatch):
    monkeypatch.setenv("PLAIT_DUMP_DIR", str(tmp_path))
    fast = plait.compile(rows, backend="dumping")
    x = torch.randn(4, 8)
    torch.testing.assert_close(fast(x, x), rows(x, x))
    (folder,) = tmp_path.iterdir()
    assert "aten" in (folder / "inference.py").read_text()


def test_a_backend_of_ones_own():
    seen = []

    def backend(graph_module, example_inputs):
        seen.append((graph_module, [tuple(t.shape) for t in example_inputs]))
        return graph_module.forward

    fast = plait.compile(rows, backend=backend)
    x = torch.randn(4, 8)
    torch.testing.assert_close(fast(x, x), rows(x, x))
    assert len(seen) == 1
    assert plait.report(fast).graphs[0].outcome == "custom"


def test_a_backend_that_returns_nothing_is_an_error():
    fast = plait.compile(rows, backend=lambda graph_module, example_inputs: None)
    with pytest.raises(plait.BackendError, match="cannot be called"):
        fast(torch.ones(2, 2), torch.ones(2, 2))


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (lambda x: x + 1, "gave Tensor, and the graph has 2 outputs"),
        (lambda x: None, "gave NoneType"),
        (lambda x: (x,), "gave a tuple of 1"),
        (lambda x: [x, x, x], "gave a list of 3"),
    ],
)
def test_a_backend_whose_results_do_not_fit_is_an_error(returned, words):
    def backend(graph_module, example_inputs):
        return returned

    fast = plait.compile(lambda x: (x + 1, x * 2), backend=backend)
    with pytest.raises(plait.BackendError, match=words):
        fast(torch.ones(2))


def test_what_a_backend_raises_is_raised():
    def backend(graph_module, example_inputs):
        raise ValueError("my backend is broken")

    fast = plait.compile(rows, backend=backend)
    for _ in range(2):
        with pytest.raises(ValueError, match="my backend is broken"):
            fast(torch.ones(2, 2), torch.ones(2, 2))


def test_backends_of_many_kinds():
    class Kept:
        def __init__(self, graph_module, example_inputs):
            self.graph_module = graph_module

        def __call__(self, *inputs):
            return self.graph_module(*inputs)

    def with_more(graph_module, example_inputs, capture=None, **more):
        return graph_module

    x = torch.randn(4, 8)
    for backend in (Kept, with_more, functools.partial(with_more, mode="any")):
        torch.testing.assert_close(plait.compile(rows, backend=backend)(x, x), rows(x, x))


def test_the_triton_backend_says_what_it_needs(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    fast = plait.compile(rows, backend="triton")
    x = torch.randn(4, 8)
    torch.testing.assert_close(fast(x, x), rows(x, x))
    reason = str(plait.report(fast).graphs[0].reason)
    assert "TRITON_INTERPRET=1" in reason or "pip install plait[triton]" in reason


def test_the_triton_backend_runs_in_the_interpreter():
    pytest.importorskip("plait_triton_codegen")
    code = (
        "import torch, plait\n"
        "def rows(x):\n    return torch.softmax(x * 2, dim=-1)\n"
        "fast = plait.compile(rows, backend='triton')\n"
        "x = torch.randn(4, 8)\n"
        "torch.testing.assert_close(fast(x), rows(x))\n"
        "print(plait.report(fast).graphs[0].backend)"
    )
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.stdout.strip() == "triton", done.stderr
